"""Autograd in sizes: tensors that are only a number of bytes, and operators that know what backward will need.

A `Tape` notes when a storage appears and when its last reference goes, which Python's own reference counts decide, as
they do in PyTorch. An operator's docstring or comment names what it saves; its backward frees that when it has run.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from itertools import count
from typing import NamedTuple

from labs_utils.timeline import Event, Timeline


class Work(NamedTuple):
    """An operator that ran: the bytes that it wrote, the size of their numbers, and the operations of its products.

    `phase` is that of the timeline, or "recompute" for what a checkpointed layer does again in backward.
    """

    phase: str
    operator: str
    nbytes: int
    itemsize: int
    flops: int


class Storage:
    """Bytes on the device or, `on_host`, on the host; gone when nothing refers to it any more."""

    __slots__ = ("tape", "identity", "nbytes", "events")

    def __init__(self, tape: Tape, nbytes: int, operator: str, part: str | None, on_host: bool = False):
        self.tape, self.nbytes, self.identity = tape, nbytes, next(tape.identities)
        self.events = tape.timeline.host_events if on_host else tape.timeline.events
        if nbytes:
            self.events.append(Event(self.identity, nbytes, tape.phase, operator))
        if part:
            tape.timeline.part_of[self.identity] = part

    def __del__(self):
        if self.nbytes:
            self.events.append(Event(self.identity, -self.nbytes, self.tape.phase, "free"))


class Tensor:
    """A view of a storage: elements, bytes an element, and the node that made it (None: no gradient needed)."""

    __slots__ = ("elements", "itemsize", "storage", "node")

    def __init__(self, elements: int, itemsize: int, storage: Storage, node: Node | None = None):
        self.elements, self.itemsize, self.storage, self.node = elements, itemsize, storage, node

    def detach(self) -> Tensor:
        """The same storage, without history."""
        return Tensor(self.elements, self.itemsize, self.storage)


class Node:
    """A step of backward: `backward(gradient, *saved)` returns a gradient for each of `parents`.

    `validate`, where there is one, casts these to the parents' types, once what was saved has been freed.
    """

    __slots__ = ("order", "backward", "parents", "saved", "operator", "validate")

    def __init__(self, order: int, backward: Callable, parents: tuple, saved: tuple = (), operator: str = ""):
        self.order, self.backward, self.parents, self.saved = order, backward, parents, saved
        self.operator, self.validate = operator, None


class Leaf(Node):
    """A parameter's end of the graph: it keeps the first gradient and adds later ones to it in place.

    With `sums_in_place` the gradients of one backward are added in place, too, as autograd does where nothing else
    refers to the first: torch/csrc/autograd/input_buffer.cpp, `can_accumulate_inplace`. `hook` is called after each.
    """

    __slots__ = ("gradient", "sums_in_place", "hook")

    def __init__(self):
        super().__init__(2**62, self.accumulate, ())
        self.gradient, self.sums_in_place, self.hook = None, False, None

    def accumulate(self, gradient: Tensor) -> tuple:
        gradient.storage.tape.label(gradient, "gradients")
        if self.gradient is None:
            self.gradient = gradient
        del gradient
        if self.hook:
            self.hook()
        return ()


class Checkpoint(Node):
    """Stands for a whole layer: `backward(saved input)` runs it again and returns the last of its nodes."""

    __slots__ = ()


class Tape:
    """Records a `Timeline`, and in `work` what was computed. `grad_enabled` is False where nothing is saved.

    With `offloads`, what is saved waits on the host, as under `torch.autograd.graph.save_on_cpu`.
    """

    def __init__(self, offloads: bool = False):
        self.timeline, self.offloads = Timeline(), offloads
        self.work: list[Work] = []
        self.phase = "before"
        self.grad_enabled, self.recomputing = True, False
        self.identities, self._orders = count(), count()

    def begin(self, phase: str) -> None:
        """Everything from here on belongs to `phase`, which has a first moment even where nothing happens in it."""
        self.phase = phase
        self.timeline.events.append(Event(next(self.identities), 0, phase, "begin"))

    def label(self, tensor: Tensor, part: str) -> None:
        """Say what a tensor's storage is; it counts as that from its first event on."""
        self.timeline.part_of[tensor.storage.identity] = part

    def new(self, elements: int, itemsize: int, operator: str, part: str | None = None, flops: int = 0) -> Tensor:
        """A fresh tensor without history, from an operator of so many multiplications and additions in products."""
        self.note(operator, elements * itemsize, itemsize, flops)
        return Tensor(elements, itemsize, Storage(self, elements * itemsize, operator, part))

    def note(self, operator: str, nbytes: int, itemsize: int, flops: int = 0) -> None:
        """Add to `work` what an operator computes, whether or not it makes a tensor."""
        phase = "recompute" if self.recomputing else self.phase
        self.work.append(Work(phase, operator, nbytes, itemsize, flops))

    def parameter(self, elements: int, itemsize: int) -> Tensor:
        tensor = self.new(elements, itemsize, "parameter", "parameters")
        tensor.node = Leaf()
        return tensor

    def scratch(self, sizes: list[int], operator: str) -> None:
        """What a kernel takes for itself and gives back when it ends."""
        held = [Storage(self, nbytes, operator, "workspace") for nbytes in sizes]
        del held

    def differentiable(
        self, output: Tensor, operator: str, backward: Callable, inputs: tuple, saves: tuple, node_type: type = Node
    ) -> Tensor:
        """`output` with a node on the tape that holds what it saves, if any input needs a gradient."""
        parents = tuple([tensor.node for tensor in inputs])
        if self.grad_enabled and any(parents):
            saved = tuple([self.save(tensor) for tensor in saves])
            output.node = node_type(next(self._orders), backward, parents, saved, operator)
        return output

    def save(self, tensor: Tensor) -> Tensor:
        """What a node holds of a tensor: the tensor itself, or a copy on the host of all its elements."""
        if not self.offloads:
            return tensor.detach()
        nbytes, part = tensor.elements * tensor.itemsize, self.timeline.part_of.get(tensor.storage.identity)
        kept_part = part if part == "logits" else None  # a parameter's copy isn't one
        return Tensor(tensor.elements, tensor.itemsize, Storage(self, nbytes, "save_on_cpu", kept_part, on_host=True))

    def put_in_order(self, *transposed: Tensor) -> None:
        """What saving on the host takes on the device for each tensor that doesn't lie in order: a copy that does."""
        for tensor in transposed if self.offloads else ():
            copied = self.new(tensor.elements, tensor.itemsize, "contiguous")
            del copied

    def saved(self, node: Node) -> tuple:
        """What a node has saved, on the device again."""
        if not self.offloads:
            return node.saved
        parts = self.timeline.part_of
        return tuple(self.new(t.elements, t.itemsize, "to", parts.get(t.storage.identity)) for t in node.saved)

    def backward(self, root: Node, gradient: Tensor) -> None:
        """Run the nodes below `root`, the newest first, as soon as all their gradients are there.

        torch/csrc/autograd/engine.cpp, `Engine::evaluate_function`: run, drop the gradient and what was saved, add up.
        """
        waiting, gradients, ready = uses_below(root), {id(root): gradient}, [(-root.order, id(root), root)]
        del gradient
        while ready:
            node = heapq.heappop(ready)[2]
            if isinstance(node, Checkpoint):
                again = self._recompute(node, waiting)
                gradients[id(again)] = gradients.pop(id(node))
                heapq.heappush(ready, (-again.order, id(again), again))
                continue
            received = gradients.pop(id(node))
            results = node.backward(received, *self.saved(node))
            node.saved = ()
            results = node.validate(*results) if node.validate else results
            del received
            for parent, result in zip(node.parents, results, strict=True):
                if parent is not None:
                    self._receive(parent, result, gradients)
                    waiting[id(parent)] -= 1
                    if not waiting[id(parent)]:
                        heapq.heappush(ready, (-parent.order, id(parent), parent))
            results = result = None

    def _recompute(self, node: Checkpoint, waiting: Counter) -> Node:
        """Run the layer again, saving this time, and put its nodes in the checkpoint's place."""
        again = node.backward(*node.saved)
        node.saved, node.backward = (), None
        waiting.update(uses_below(again, stop=node.parents))
        waiting[id(node.parents[0])] -= 1
        return again

    def _receive(self, node: Node, gradient: Tensor, gradients: dict) -> None:
        if id(node) not in gradients:
            gradients[id(node)] = gradient
        elif not getattr(node, "sums_in_place", False):
            gradients[id(node)] = self.new(gradient.elements, gradient.itemsize, "add")


def uses_below(root: Node, stop: tuple = ()) -> Counter:
    """How many gradients each node below `root` waits for, by `id`; nodes below those in `stop` are left out."""
    uses, seen, stack = Counter(), {id(root), *map(id, stop)}, [root]
    while stack:
        for parent in stack.pop().parents:
            if parent is not None:
                uses[id(parent)] += 1
                if id(parent) not in seen:
                    seen.add(id(parent))
                    stack.append(parent)
    return uses
