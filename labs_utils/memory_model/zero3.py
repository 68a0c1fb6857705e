"""ZeRO stage 3 in sizes: what one rank holds under DeepSpeed 0.19.8. Files named here lie under deepspeed/runtime."""

from __future__ import annotations

from functools import partial

from labs_utils.allocator import round_up
from labs_utils.memory_model.data_parallel import NORM_BYTES
from labs_utils.memory_model.llama_step import SymbolicStep
from labs_utils.memory_model.operators import Operators
from labs_utils.memory_model.tape import Tensor
from labs_utils.memory_model.zero3_gathering import Coordinator, Module, PartitionedWeight
from labs_utils.zero_settings import limits


class Stage3Operators(Operators):
    """zero/linear.py, `LinearFunctionForZeroStage3`: the input's gradient comes first.

    A recomputation has made a layer's last product before it finds that it may stop.
    """

    def linear(self, x: Tensor, weight: Tensor, part: str | None = None, last: bool = False) -> Tensor:
        return super().linear(x, weight, part)

    def before_product(self, weight: Tensor) -> None:
        """The weight is saved as it is."""

    def _linear_backward(self, gradient: Tensor, weight: Tensor, x: Tensor) -> tuple:
        self.take_workspace()
        flops = self._linear_flops(weight)
        for_x = self.like(x, "mm", flops=flops)
        return self.like(weight, "mm", flops=flops), for_x


class Zero3Step(SymbolicStep):
    """zero/stage3.py on one rank, and the hooks of zero/parameter_offload.py around every module."""

    operators = Stage3Operators
    coordinated_by = Coordinator

    def _build(self) -> None:
        super()._build()
        zero, ranks = self.run.zero, self.run.world_size
        self.bucket_elements = limits(zero).bucket
        self.shares = {id(weight): round_up(weight.elements, ranks) // ranks for weight in self.parameters}
        total = sum(self.shares.values())
        partitions = self.new_partitions(total)
        self.coordinator = self.coordinated_by(self.tape, ranks, limits(zero), partitions.storage)
        for weight in self.parameters:
            weight.node.hook = partial(self.on_gradient, weight)
        sizes = [sum(self.shares[id(weight)] for weight in group) for group in self._sub_groups()]
        self.masters = [self.new_master(size) for size in sizes]
        self.bucket = self.tape.new(self.bucket_elements, self.itemsize, "bucket", "buffers")
        self.averaged = self.new_averaged(total)
        self.in_bucket: list[Tensor] = []
        self.elements_in_bucket = 0
        self.fired_before = 0

    def new_weight(self, elements: int) -> PartitionedWeight:
        """`zero.Init` in zero/partition_parameters.py: partitioned as soon as it is made, and then no longer there."""
        return PartitionedWeight(super().new_weight(elements), stays=elements <= limits(self.run.zero).staying)

    def new_partitions(self, elements: int) -> Tensor:
        """This rank's part of the weights, in one tensor."""
        return self.tape.new(elements, self.itemsize, "defragment", "parameters")

    def new_averaged(self, elements: int) -> Tensor:
        """This rank's part of the gradients, in one tensor."""
        return self.tape.new(elements, self.itemsize, "gradients", "gradients")

    def _sub_groups(self) -> list[list[Tensor]]:
        """`_create_fp16_sub_groups`: the optimizer's step takes so many weights at a time."""
        size, groups, elements = limits(self.run.zero).sub_group, [[]], 0
        for weight in self.parameters:
            if elements >= size:
                groups.append([])
                elements = 0
            groups[-1].append(weight)
            elements += self.shares[id(weight)]
        return groups

    def forward(self) -> Tensor:
        self.coordinator.reset()
        return super().forward()

    def module(self, name: str, call, x: Tensor | None = None, weight: Tensor | None = None):
        """`call(x)` between the hooks: gather before, release after, and the same around its backward."""
        module = Module(name, () if weight is None else (weight,))
        self.coordinator.fetch(module, forward=True)
        if x is not None:
            after = lambda gradient: self._after_backward(module, gradient)  # noqa: E731
            x = self.tape.differentiable(x.detach(), "after", after, (x,), ())
        output = call(x)
        if not (name == "down" and self.ops.early_stop):
            self.coordinator.release(module, forward=True)
        if not isinstance(output, Tensor):
            return output
        before = lambda gradient: self._before_backward(module, gradient)  # noqa: E731
        return self.tape.differentiable(output.detach(), "before", before, (output,), ())

    def _before_backward(self, module: Module, gradient: Tensor) -> tuple:
        if self.fired_before:
            self.fired_before -= 1
        else:
            self.coordinator.fetch(module, forward=False)
        return (gradient,)

    def _after_backward(self, module: Module, gradient: Tensor) -> tuple:
        self.coordinator.release(module, forward=False)
        return (gradient,)

    def before_recomputing(self, layer) -> None:
        """What asks first for something saved is the layer's last product; the hooks before it have run by then."""
        for module in (Module("mlp"), Module("down", (layer.down,))):
            self.coordinator.fetch(module, forward=False)
        self.fired_before = 2

    def on_gradient(self, weight: Tensor) -> None:
        """`reduce_independent_p_g_buckets_and_remove_grads`: a gradient that fits moves into the bucket."""
        if self.in_bucket and self.elements_in_bucket + weight.elements > self.bucket_elements:
            self.flush()
        if self.elements_in_bucket + weight.elements <= self.bucket_elements:
            weight.node.gradient = Tensor(weight.elements, self.itemsize, self.bucket.storage)
        self.in_bucket.append(weight)
        self.elements_in_bucket += weight.elements

    def flush(self) -> None:
        """`__reduce_and_partition_ipg_grads`: `reduce_scatter_coalesced` in comm/coalesced_collectives.py copies them
        rank by rank; then each rank's part goes where it stays."""
        ranks, flat = self.run.world_size, None
        padded = sum(round_up(weight.elements, ranks) for weight in self.in_bucket)
        if len(self.in_bucket) > 1 or padded != sum(weight.elements for weight in self.in_bucket):
            flat = self.tape.new(padded, self.itemsize, "reduce_scatter")
        self.partition_gradients(self.in_bucket)
        del flat
        self.in_bucket, self.elements_in_bucket = [], 0

    def partition_gradients(self, weights: list[Tensor]) -> None:
        """`partition_grads`: this rank's part of each gradient goes where it stays."""
        for weight in weights:
            weight.node.gradient = None

    def end_of_backward(self, is_last: bool) -> None:
        self.flush()
        self.coordinator.release_leftovers()

    def optimizer_step(self) -> None:
        """`step`: the norm of each gradient in fp64, then one sub-group after another."""
        self.coordinator.release_all(self.parameters)
        for share in self.shares.values():
            wide = self.tape.new(share, NORM_BYTES, "norm")
            del wide
        for master in self.masters:
            gradient = self.tape.new(master.elements, self.itemsize, "flatten", "gradients")
            if self.itemsize != master.itemsize:
                gradient = self.tape.new(master.elements, master.itemsize, "to", "gradients")
            self.update([master])
            del gradient
        self.coordinator.gather_staying(self.parameters)
