"""Which weights are whole when, at ZeRO stage 3: DeepSpeed 0.19.8's coordinator, played in sizes.

Source, under deepspeed/runtime/zero: `PartitionedParameterCoordinator` in partitioned_param_coordinator.py, and the
handles of `all_gather_coalesced` in partition_parameters.py.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field

from labs_utils.allocator import round_up
from labs_utils.memory_model.tape import Storage, Tape, Tensor
from labs_utils.zero_settings import Limits

PARTITIONED, IN_FLIGHT, AVAILABLE = "partitioned", "in flight", "available"
NEVER = -1


class PartitionedWeight(Tensor):
    """A weight whose storage is there only while it is gathered.

    What autograd saves of it is the weight itself, as of every leaf, so that nothing keeps a storage that is released.
    """

    __slots__ = ("status", "stays", "used_by")

    def __init__(self, weight: Tensor, stays: bool):
        super().__init__(weight.elements, weight.itemsize, no_storage(weight.storage.tape), weight.node)
        self.status, self.stays, self.used_by = PARTITIONED, stays, set()

    def detach(self) -> Tensor:
        return self


def no_storage(tape: Tape) -> Storage:
    """The storage of a weight that isn't gathered: 0 bytes."""
    return Storage(tape, 0, "empty", None)


@dataclass(frozen=True)
class Module:
    """A module that is called: what tells it from others, and the weight that it has itself, if any."""

    name: str
    weights: tuple[PartitionedWeight, ...] = ()

    @property
    def key(self) -> tuple:
        return self.name, *map(id, self.weights)


@dataclass
class Gathered:
    """A gather under way: of several weights, the flat tensor that they are copied out of when the first is used.

    It goes when all of them have been waited for.
    """

    weights: list[PartitionedWeight]
    flat: Tensor | None = None

    def wait(self) -> None:
        for weight in self.weights:
            if weight.status == IN_FLIGHT:
                if self.flat is not None:
                    tape = self.flat.storage.tape
                    weight.storage = tape.new(weight.elements, weight.itemsize, "cat", "parameters").storage
                weight.status = AVAILABLE


@dataclass
class Coordinator:
    """Gathers weights before a module uses them and ahead of that, and releases them after.

    The first step records the order of modules; from then on the next `limits.prefetch` elements in it are gathered
    ahead, and what is used again within `limits.reuse_distance` elements isn't released.
    """

    tape: Tape
    world_size: int
    limits: Limits
    partitions: Storage
    order: list[Module] = field(default_factory=list)
    is_complete: bool = False
    step: int = 0
    live: int = 0
    queue: deque = field(default_factory=deque)
    under_way: dict[int, tuple[PartitionedWeight, Gathered]] = field(default_factory=dict)
    fetched_for: dict[int, int] = field(default_factory=lambda: defaultdict(lambda: NEVER))
    in_backward: dict[tuple, Module] = field(default_factory=dict)
    decided: dict[tuple, set[int]] = field(default_factory=dict)

    def reset(self) -> None:
        """`reset_step`, as a forward begins: a recorded order is complete now."""
        self.wait_for_all()
        self.is_complete = bool(self.order)
        self.queue = deque((weight, place) for place, module in enumerate(self.order) for weight in module.weights)
        self.fetched_for.clear()
        self.step = self.live = 0

    def wait_for_all(self) -> None:
        """`_clean_inflight_param_registry`: what was gathered ahead and not used is released."""
        while self.under_way:
            weight, gathered = self.under_way.pop(next(iter(self.under_way)))
            gathered.wait()
            self.release_weight(weight)

    def fetch(self, module: Module, forward: bool) -> None:
        """`fetch_sub_module`: gather and wait for its weights, then gather ahead."""
        if not self.is_complete:
            self.order.append(module)
        if not forward:
            self.in_backward[module.key] = module
        self.gather([weight for weight in module.weights if weight.status == PARTITIONED])
        for weight in module.weights:
            weight.used_by.add(module.key)
            if id(weight) in self.under_way:
                self.under_way.pop(id(weight))[1].wait()
        if self.is_complete:
            self._take_from_queue(module)
            self.gather(list(self._next_in_queue()))
        self.step += 1

    def _take_from_queue(self, module: Module) -> None:
        """The module's own weights needn't be gathered ahead any more."""
        waiting = sum(self.fetched_for[id(weight)] < self.step for weight in module.weights)
        taken: set[int] = set()
        while self.queue and len(taken) < waiting:
            weight, place = self.queue.popleft()
            self.fetched_for[id(weight)] = place
            taken.add(id(weight))

    def _next_in_queue(self):
        """Weights to gather ahead: partitioned ones, until there are as many elements as the limits allow."""
        room, taken, elements = min(self.limits.live - self.live, self.limits.prefetch), set(), 0
        while self.queue and elements < room:
            weight, place = self.queue.popleft()
            self.fetched_for[id(weight)] = max(self.fetched_for[id(weight)], place)
            if weight.status == PARTITIONED and id(weight) not in taken:
                taken.add(id(weight))
                elements += weight.elements
                yield weight

    def gather(self, weights: list[PartitionedWeight]) -> None:
        """`all_gather_coalesced`: one weight into a tensor of its own, several into one flat tensor."""
        gathered = Gathered(weights)
        self.live += sum(weight.elements for weight in weights)
        if len(weights) > 1 and self.world_size > 1:
            elements = sum(round_up(weight.elements, self.world_size) for weight in weights)
            gathered.flat = self.tape.new(elements, weights[0].itemsize, "all_gather", "parameters")
        for weight in weights:
            weight.status = IN_FLIGHT
            self.under_way[id(weight)] = weight, gathered
            if gathered.flat is None:
                weight.storage = self.whole(weight)

    def whole(self, weight: PartitionedWeight) -> Storage:
        """Where one gathered weight lies; a single rank has it already."""
        if self.world_size == 1:
            return self.partitions
        elements = round_up(weight.elements, self.world_size)
        return self.tape.new(elements, weight.itemsize, "all_gather", "parameters").storage

    def release(self, module: Module, forward: bool) -> None:
        """`release_sub_module`: after forward, or after the last gradient of its inputs."""
        kept = self._kept(module) if self.is_complete else set()
        if not forward:
            self.in_backward.pop(module.key, None)
        for weight in module.weights:
            weight.used_by.discard(module.key)
            if id(weight) not in kept:
                self.release_weight(weight)

    def _kept(self, module: Module) -> set[int]:
        """`__params_to_release`, the other way round: which weights stay; decided once, for all steps."""
        if (module.key, self.step) not in self.decided:
            self.decided[module.key, self.step] = self._decide(module)
        return self.decided[module.key, self.step]

    def _decide(self, module: Module) -> set[int]:
        own = {id(weight): weight for weight in module.weights}
        kept = {key for key, weight in own.items() if weight.stays or self.fetched_for[key] > self.step}
        traversed, place = 0, self.step
        while kept != own.keys() and place < len(self.order) and traversed < self.limits.reuse_distance:
            for weight in self.order[place].weights:
                kept |= own.keys() & {id(weight)}
                traversed += weight.elements
            place += 1
        return kept

    def release_weight(self, weight: PartitionedWeight) -> None:
        if weight.status == AVAILABLE and not weight.used_by:
            weight.storage, weight.status = no_storage(self.tape), PARTITIONED
            self.live -= weight.elements

    def release_leftovers(self) -> None:
        """`release_backward_leftovers`: modules whose inputs need no gradient, so that nothing has released them."""
        while self.in_backward:
            _, module = self.in_backward.popitem()
            for weight in module.weights:
                weight.used_by.discard(module.key)
                if not weight.stays:
                    self.release_weight(weight)

    def release_all(self, weights: list[PartitionedWeight]) -> None:
        """`release_and_reset_all`, before the optimizer's step."""
        for weight in weights:
            if id(weight) in self.under_way:
                self.under_way.pop(id(weight))[1].wait()
            weight.used_by.clear()
            self.release_weight(weight)

    def gather_staying(self, weights: list[PartitionedWeight]) -> None:
        """After the step (`_post_step`): small weights, which are gathered once and stay."""
        for weight in weights:
            if weight.stays and weight.status == PARTITIONED:
                weight.storage, weight.status = self.whole(weight), AVAILABLE
