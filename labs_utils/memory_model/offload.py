"""ZeRO with offload in sizes: what one rank holds on its GPU and on the host, under DeepSpeed 0.19.8.

Files named here lie under deepspeed/runtime/zero. Copies between the two take nothing on the GPU: where they change the
type too, the host does that (aten/src/ATen/native/cuda/Copy.cu).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from labs_utils.device import CPU, Device
from labs_utils.memory_model.data_parallel import NORM_BYTES, ZeroStep
from labs_utils.memory_model.llama_step import SymbolicStep
from labs_utils.memory_model.tape import Storage, Tensor
from labs_utils.memory_model.zero3 import Zero3Step
from labs_utils.memory_model.zero3_gathering import Coordinator, Gathered, PartitionedWeight
from labs_utils.precision import FP32_BYTES, optimizer_states
from labs_utils.run import Run
from labs_utils.zero_settings import accumulation_type, holds_sums_apart, pins_memory

NORM_ELEMENTS = 250_000_000  # stage3.py, `_constant_buffered_norm2`


class OnHost(SymbolicStep):
    """What steps with an offloaded optimizer share: its states lie on the host, and it works there."""

    def new_on_host(self, elements: int, itemsize: int, operator: str, part: str, pinned: bool = True) -> Tensor:
        storage = Storage(self.tape, elements * itemsize, operator, part, on_host=True)
        if not (pinned and pins_memory(self.run)):
            self.tape.timeline.pageable.add(storage.identity)
        return Tensor(elements, itemsize, storage)

    def new_states(self, parameter: Tensor) -> list[Tensor]:
        """Those of DeepSpeed's CPU Adam, which has no tensor that counts steps; on a CPU PyTorch's, but for `bf16`."""
        kept = optimizer_states(self.run.optimizer, parameter.elements, parameter.itemsize)
        if self.device.is_gpu or self.run.precision == "bf16":
            kept = [each for each in kept if each.name != "step"]
        return [self.new_on_host(*each[1:], each.name, "optimizer_states", pinned=False) for each in kept]


class OffloadStep(OnHost, ZeroStep):
    """Stages 1 and 2, stage_1_and_2.py: averaged gradients go to the host in fp32 as they come out of the bucket.

    When stage 2 accumulates, they go there in the weights' type after each micro-step and come back to be added to,
    unless they are accumulated in fp32: those stay on the GPU until the last micro-step.
    """

    def __init__(self, run: Run, device: Device = CPU, rank: int = 0):
        self.is_last, self.accumulated = True, None
        self.waiting_on_host: dict[int, Tensor] = {}
        super().__init__(run, device, rank)

    def _build(self) -> None:
        super()._build()
        largest = max(parameter.elements for parameter in self.parameters)
        self.staging = [
            self.new_on_host(self.partition_elements, self.itemsize, "staging", "parameters"),
            self.new_on_host(largest, self.itemsize, "staging", "gradients"),
            self.tape.new(largest, self.itemsize, "staging", "buffers"),
        ]
        self.gradient = self.new_on_host(self.partition_elements, self.master.itemsize, "gradients", "gradients")

    def new_master(self, elements: int) -> Tensor:
        """`weights_partition`: a rank's part of the weights is cloned on the GPU, and only then goes to the host."""
        clone = self.tape.new(elements, self.itemsize, "clone", "optimizer_states")
        del clone
        return self.new_on_host(elements, self.precision.updated.bytes, "master", "optimizer_states")

    @property
    def accumulates_wide(self) -> bool:
        return self.itemsize != FP32_BYTES and accumulation_type(self.run) == "fp32"

    def begin_backward(self, is_last: bool) -> None:
        super().begin_backward(is_last)
        self.is_last = is_last

    def end_of_backward(self, is_last: bool) -> None:
        super().end_of_backward(is_last)
        self.averaged = {}

    def reduce(self, parameter: Tensor) -> None:
        """A gradient that is larger than the bucket is copied, lest it be written over."""
        super().reduce(parameter)
        if parameter.elements > self.bucket_elements:
            parameter.node.gradient = self.tape.new(parameter.elements, self.itemsize, "clone", "gradients")

    def after_sending(self) -> None:
        """`allreduce_and_copy_with_multiple_ranks`: what is accumulated in fp32 is added to while the sum is there."""
        if not self.accumulates_wide:
            return
        for parameter in self.in_bucket:
            if id(parameter) in self.mine:
                if self.accumulated is None:
                    self.accumulated = self.tape.new(self.partition_elements, FP32_BYTES, "gradients", "gradients")
                wide = self.tape.new(self.mine[id(parameter)][1], FP32_BYTES, "to")
                del wide

    def _kept(self, parameter: Tensor) -> Tensor | None:
        """`copy_grads_in_partition`: to the host for good in the last micro-step, with its norm in fp64."""
        elements = self.mine[id(parameter)][1]
        if holds_sums_apart(self.run) and id(parameter) not in self.waiting_on_host:
            waiting = self.new_on_host(parameter.elements, self.itemsize, "accumulated", "gradients")
            self.waiting_on_host[id(parameter)] = waiting
        if not self.is_last:
            return parameter.node.gradient
        wide = self.tape.new(elements, NORM_BYTES, "norm")
        del wide
        if self.master.itemsize != (FP32_BYTES if self.accumulates_wide else self.itemsize):
            other = self.tape.new(elements, self.master.itemsize, "to", "gradients")
            del other
        return None

    def optimizer_step(self) -> None:
        self.accumulated = None
        self.update([self.master])


@dataclass
class CoordinatorFromHost(Coordinator):
    """Gathers weights whose parts lie on the host: each is copied to the GPU first, and that copy waits with it."""

    copies: bool = True
    copied: dict[int, Tensor] = field(default_factory=dict)

    def gather(self, weights: list[PartitionedWeight]) -> None:
        super().gather(weights)
        if self.copies and self.world_size > 1:
            for weight in weights:
                share = -(-weight.elements // self.world_size)
                copy = self.tape.new(share, weight.itemsize, "to", "parameters")
                if len(weights) == 1:
                    weights_copy = GatheredFrom(weights, None, copy)
                    self.under_way[id(weight)] = weight, weights_copy
                del copy

    def whole(self, weight: PartitionedWeight) -> Storage:
        if self.world_size == 1 and self.copies:
            return self.tape.new(weight.elements, weight.itemsize, "to", "parameters").storage
        return super().whole(weight)


@dataclass
class GatheredFrom(Gathered):
    """A gather of one weight, with the copy of this rank's part that it is gathered from."""

    copy: Tensor | None = None

    def wait(self) -> None:
        super().wait()
        self.copy = None


class Offload3Step(OnHost, Zero3Step):
    """Stage 3, stage3.py: gradients go to the host twice, in the weights' type and in fp32. Weights may live there."""

    coordinated_by = CoordinatorFromHost

    def _build(self) -> None:
        super()._build()
        self.coordinator.copies = self.device.is_gpu and self.run.offload == "all"
        self.gradients = [
            self.new_on_host(master.elements, master.itemsize, "gradients", "gradients") for master in self.masters
        ]

    def new_master(self, elements: int) -> Tensor:
        return self.new_on_host(elements, self.precision.updated.bytes, "master", "optimizer_states", pinned=False)

    def new_partitions(self, elements: int) -> Tensor:
        if self.run.offload != "all":
            return super().new_partitions(elements)
        return self.new_on_host(elements, self.itemsize, "partitions", "parameters")

    def new_averaged(self, elements: int) -> Tensor:
        return self.new_on_host(elements, self.itemsize, "gradients", "gradients")

    def begin_backward(self, is_last: bool) -> None:
        super().begin_backward(is_last)
        self.is_last = is_last

    def partition_gradients(self, weights: list[Tensor]) -> None:
        """`partition_grads`: each part is on the GPU once more, until all of the bucket's have gone to the host."""
        parts = []
        for weight in weights:
            share = self.shares[id(weight)]
            if self.device.is_gpu:
                parts.append(self.tape.new(share, self.itemsize, "to", "gradients"))
            if self.is_last:
                wide = self.tape.new(min(share, NORM_ELEMENTS), NORM_BYTES, "norm")
                del wide
                if self.itemsize != self.masters[0].itemsize:
                    wide = self.tape.new(share, self.masters[0].itemsize, "to", "gradients")
                    del wide
            weight.node.gradient = None
        del parts

    def optimizer_step(self) -> None:
        self.coordinator.release_all(self.parameters)
        for master in self.masters:
            self.update([master])
        self.coordinator.gather_staying(self.parameters)
