"""Data-parallel steps in sizes: what one rank holds under DDP, and under DeepSpeed 0.19.8 at stages 0, 1 and 2.

Forward and backward are those of one GPU; what differs is where gradients go as they arrive, and the optimizer's step.
Files named here lie under deepspeed/runtime.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from labs_utils.allocator import round_up
from labs_utils.device import CPU, Device
from labs_utils.memory_model.llama_step import SymbolicStep
from labs_utils.memory_model.tape import Storage, Tensor
from labs_utils.run import Run
from labs_utils.zero_settings import ALLREDUCE_ELEMENTS, limits

NORM_BYTES = 8  # zero/utils.py, `get_norm_dtype`: fp64


class DdpStep(SymbolicStep):
    """Gradients become views of buckets, which are made once and stay, in the last micro-step (`no_sync` before it)."""

    def _build(self) -> None:
        super()._build()
        self.is_last = False
        for parameter in self.parameters:
            bucket = self.tape.new(parameter.elements, parameter.itemsize, "bucket", "gradients")
            parameter.node.hook = partial(self._to_bucket, parameter, bucket)

    def begin_backward(self, is_last: bool) -> None:
        self.is_last = is_last

    def _to_bucket(self, parameter: Tensor, bucket: Tensor) -> None:
        if self.is_last:
            parameter.node.gradient = bucket


class AllReduceStep(SymbolicStep):
    """Stage 0: `engine.py`, `buffered_allreduce_fallback` sends gradients as flat copies of a bucket's worth."""

    def end_of_backward(self, is_last: bool) -> None:
        elements = 0
        for parameter in self.parameters if is_last else ():
            elements += parameter.elements
            if elements > ALLREDUCE_ELEMENTS or parameter is self.parameters[-1]:
                flat = self.tape.new(elements, self.itemsize, "flatten")
                del flat
                elements = 0


class MasterStep(AllReduceStep):
    """Stage 0 in 16 bits, `fp16/unfused_optimizer.py`: fp32 copies of all weights, and in a step of all gradients."""

    def _build(self) -> None:
        super()._build()
        self.masters = [self.new_master(parameter.elements) for parameter in self.parameters]

    def optimizer_step(self) -> None:
        wide = [self.tape.new(master.elements, master.itemsize, "to", "gradients") for master in self.masters]
        self.update(self.masters)
        del wide
        self.drop_gradients()


class ZeroStep(SymbolicStep):
    """Stages 1 and 2, `zero/stage_1_and_2.py`, on one rank: flat weights, and a part of everything else.

    Stage 2 moves each gradient into a bucket as it arrives, averages full buckets over the ranks and keeps its own
    part; stage 1 does so at the end of the last micro-step.
    """

    def __init__(self, run: Run, device: Device = CPU, rank: int = 0):
        self.rank, self.reduces_on_arrival = rank, False
        self.buckets: list[Tensor] = []
        self.in_bucket: list[Tensor] = []
        self.elements_in_bucket = 0
        self.owned: Storage | None = None
        self.averaged: dict[int, Tensor] = {}
        super().__init__(run, device)

    def _build(self) -> None:
        super()._build()
        self.bucket_elements = limits(self.run.zero).bucket
        elements = round_up(sum(parameter.elements for parameter in self.parameters), 2 * self.run.world_size)
        self.partition_elements = elements // self.run.world_size
        self.spans = dict(spans([(id(p), p.elements) for p in self.parameters], self.partition_elements))
        shares = ((p, dict(self.spans[id(p)]).get(self.rank)) for p in self.parameters)
        self.mine = {id(parameter): (parameter, elements) for parameter, elements in shares if elements}
        limit_bytes = self.device.allocator_bytes
        if limit_bytes is not None and 2 * elements * self.itemsize > limit_bytes:
            self._leave_for_the_host()
        flat = self.tape.new(elements, self.itemsize, "flatten", "parameters")
        for parameter in self.parameters:
            parameter.storage = flat.storage
            parameter.node.hook = partial(self.on_gradient, parameter)
        self.master = self.new_master(self.partition_elements)

    def _leave_for_the_host(self) -> None:
        """`flatten_on_accelerator` is false: there isn't room for a second copy, so that one is made on the host."""
        for parameter in self.parameters:
            parameter.storage = Storage(self.tape, 0, "empty", None)

    def begin_backward(self, is_last: bool) -> None:
        """`process_gradients`: stage 2 reduces always, stage 1 in the last micro-step, and on arrival with overlap."""
        self.reduces_on_arrival = self.run.zero_stage == 2 or bool(is_last and self.run.zero.get("overlap_comm"))

    def end_of_backward(self, is_last: bool) -> None:
        """`reduce_gradients` and `independent_gradient_partition_epilogue`."""
        if self.run.zero_stage == 1 and not is_last:
            return
        for parameter in () if self.reduces_on_arrival else self.parameters:
            self.reduce(parameter)
        self.flush()
        gradients = {key: parameter.node.gradient for key, (parameter, _) in self.mine.items()}
        self.averaged = self.averaged or gradients  # else the new ones are added to them in place
        del gradients
        self.drop_gradients()
        self.buckets, self.owned = [], None

    def on_gradient(self, parameter: Tensor) -> None:
        """`process_gradients`: make the buckets with the first gradient; reduce each, unless that is for later."""
        if not self.buckets:
            sizes = [self.bucket_elements] * (2 if self.run.zero.get("overlap_comm") else 1)
            self.buckets = [self.tape.new(size, self.itemsize, "bucket", "buffers") for size in sizes]
        if self.reduces_on_arrival:
            self.reduce(parameter)

    def reduce(self, parameter: Tensor) -> None:
        """`reduce_independent_p_g_buckets_and_remove_grads`: a gradient that fits moves into the bucket."""
        if self.in_bucket and self.elements_in_bucket + parameter.elements > self.bucket_elements:
            self.flush()
        if parameter.elements <= self.bucket_elements:
            parameter.node.gradient = Tensor(parameter.elements, self.itemsize, self.buckets[0].storage)
        self.in_bucket.append(parameter)
        self.elements_in_bucket += parameter.elements

    def flush(self) -> None:
        """`reduce_ipg_grads`: all-reduce the bucket, then keep this rank's part of it."""
        for slices in self._sent():  # a single tensor is flat already
            flat = self.tape.new(sum(slices), self.itemsize, "all_reduce") if len(slices) > 1 else None
            self.after_sending()
            del flat
        for parameter in self.in_bucket:
            if id(parameter) in self.mine:
                parameter.node.gradient = self._kept(parameter)
            elif self.run.zero_stage == 2:
                parameter.node.gradient = None
        self.in_bucket, self.elements_in_bucket = [], 0

    def after_sending(self) -> None:
        """What happens while the reduced copy of a bucket is there; here nothing."""

    def _sent(self) -> list[list[int]]:
        """`average_tensor`, `allreduce_and_scatter`: the bucket's slices by rank, sent together up to its size."""
        merged: list[tuple[int, int]] = []
        for rank, elements in (span for parameter in self.in_bucket for span in self.spans[id(parameter)]):
            before = merged.pop()[1] if merged and merged[-1][0] == rank else 0
            merged.append((rank, before + elements))
        sent: list[list[int]] = [[]]
        for _, elements in merged:
            sent[-1].append(elements)
            if sum(sent[-1]) > self.bucket_elements:
                sent.append([])
        return sent

    def _kept(self, parameter: Tensor) -> Tensor:
        """`copy_grads_in_partition`: whole gradients of all parameters that this rank has a part of, in one tensor."""
        if self.owned is None:
            elements = sum(mine.elements for mine, _ in self.mine.values())
            self.owned = self.tape.new(elements, self.itemsize, "owned gradients", "gradients").storage
        return Tensor(parameter.elements, self.itemsize, self.owned)

    def optimizer_step(self) -> None:
        """`step`: the norm in fp64, the gradients flat and then in fp32, and Adam on this rank's part."""
        for _, elements in self.mine.values():
            wide = self.tape.new(elements, NORM_BYTES, "norm")
            del wide
        gradient = self.tape.new(self.partition_elements, self.itemsize, "flatten", "gradients")
        if self.itemsize != self.master.itemsize:
            gradient = self.tape.new(self.partition_elements, self.master.itemsize, "to", "gradients")
        self.averaged = {}
        self.update([self.master])
        del gradient


def spans(sizes: list[tuple[int, int]], partition_elements: int) -> Iterator[tuple[int, list[tuple[int, int]]]]:
    """For each (key, elements) laid end to end: the ranks in whose partitions it lies, with the elements in each.

    >>> list(spans([("embedding", 6), ("norm", 2)], partition_elements=4))
    [('embedding', [(0, 4), (1, 2)]), ('norm', [(1, 2)])]
    """
    position = 0
    for key, elements in sizes:
        end, shares = position + elements, []
        while position < end:
            rank = position // partition_elements
            share = min(end, (rank + 1) * partition_elements) - position
            shares.append((rank, share))
            position += share
        yield key, shares
