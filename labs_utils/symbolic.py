"""Autograd in sizes: tensors that are only a number of bytes, and operators that know what backward will need.

A `Tape` notes when a storage appears and when its last reference goes, which Python's own reference counts decide, as
they do in PyTorch. An operator's docstring or comment names what it saves; its backward frees that when it has run.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable

from labs_utils.timeline import Event, Timeline


class Storage:
    """Bytes on the device; gone when nothing refers to it any more."""

    __slots__ = ("tape", "identity", "nbytes")

    def __init__(self, tape: Tape, nbytes: int, operator: str, part: str | None):
        self.tape, self.nbytes = tape, nbytes
        self.identity = tape.appear(nbytes, operator, part)

    def __del__(self):
        self.tape.go(self.identity, self.nbytes)


class Tensor:
    """A view of a storage: elements, bytes an element, and the node that made it (None: no gradient needed)."""

    __slots__ = ("elements", "itemsize", "storage", "node")

    def __init__(self, elements: int, itemsize: int, storage: Storage, node: Node | None = None):
        self.elements, self.itemsize, self.storage, self.node = elements, itemsize, storage, node

    def detach(self) -> Tensor:
        """The same storage, without history."""
        return Tensor(self.elements, self.itemsize, self.storage)


class Node:
    """A step of backward: `backward(gradient, *saved)` returns a gradient for each of `parents`."""

    __slots__ = ("order", "backward", "parents", "saved", "operator")

    def __init__(self, order: int, backward: Callable, parents: tuple, saved: tuple = (), operator: str = ""):
        self.order, self.backward, self.parents, self.saved = order, backward, parents, saved
        self.operator = operator


class Leaf(Node):
    """A parameter's end of the graph: it keeps the first gradient and adds later ones to it in place."""

    __slots__ = ("gradient",)

    def __init__(self):
        super().__init__(2**62, self.accumulate, ())
        self.gradient = None

    def accumulate(self, gradient: Tensor) -> tuple:
        gradient.storage.tape.label(gradient, "gradients")
        if self.gradient is None:
            self.gradient = gradient
        return ()


class Checkpoint(Node):
    """Stands for a whole layer: `backward(saved input)` runs it again and returns the last of its nodes."""

    __slots__ = ()


class Tape:
    """Records a `Timeline`. `grad_enabled` is False while a checkpointed layer runs forward."""

    def __init__(self):
        self.timeline = Timeline()
        self.phase = "before"
        self.grad_enabled = True
        self._next_storage = self._next_order = 0

    def appear(self, nbytes: int, operator: str, part: str | None) -> int:
        identity = self._next_storage
        self._next_storage += 1
        if nbytes:
            self.timeline.events.append(Event(identity, nbytes, self.phase, operator))
        if part:
            self.timeline.part_of[identity] = part
        return identity

    def go(self, identity: int, nbytes: int) -> None:
        if nbytes:
            self.timeline.events.append(Event(identity, -nbytes, self.phase, "free"))

    def label(self, tensor: Tensor, part: str) -> None:
        """Say what a tensor's storage is; it counts as that from its first event on."""
        self.timeline.part_of[tensor.storage.identity] = part

    def new(self, elements: int, itemsize: int, operator: str, part: str | None = None) -> Tensor:
        """A fresh tensor without history."""
        return Tensor(elements, itemsize, Storage(self, elements * itemsize, operator, part))

    def parameter(self, elements: int, itemsize: int) -> Tensor:
        tensor = self.new(elements, itemsize, "parameter", "parameters")
        tensor.node = Leaf()
        return tensor

    def scratch(self, sizes: list[int], operator: str) -> None:
        """What a kernel takes for itself and gives back when it ends."""
        held = [Storage(self, nbytes, operator, "workspace") for nbytes in sizes]
        del held

    def differentiable(
        self, output: Tensor, operator: str, backward: Callable, inputs: tuple, saves: tuple, kind: type = Node
    ) -> Tensor:
        """`output` with a node on the tape that holds what it saves, if any input needs a gradient."""
        parents = tuple(tensor.node for tensor in inputs)
        if self.grad_enabled and any(parents):
            saved = tuple(tensor.detach() for tensor in saves)
            output.node = kind(self._next_order, backward, parents, saved, operator)
            self._next_order += 1
        return output

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
            results = node.backward(gradients.pop(id(node)), *node.saved)
            node.saved = ()
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
        if id(node) in gradients:
            gradient = self.new(gradient.elements, gradient.itemsize, "add")
        gradients[id(node)] = gradient


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
