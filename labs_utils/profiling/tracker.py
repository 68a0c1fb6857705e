"""Live and peak bytes of every tensor storage, by part and phase: what a memory profiler sees, on any device.

A dispatch mode notes each storage when an operator returns it, and again when its last reference goes. What an
operator allocates and frees inside itself (kernel scratch, library workspaces) is not visible to it.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from labs_utils.timeline import Event, Timeline

_storages_are_on_host = False


@contextmanager
def host_memory() -> Iterator[None]:
    """What is allocated in here stands for the host's memory: trackers keep it apart from the device's."""
    global _storages_are_on_host
    before, _storages_are_on_host = _storages_are_on_host, True
    try:
        yield
    finally:
        _storages_are_on_host = before


class MemoryTracker(TorchDispatchMode):
    """Context manager that records a `Timeline` of tensor storages.

    Call `watch(part, tensors)` for tensors that exist already, `phase(name)` as phases begin. `vocab_size` lets it
    tell logits from other activations, and `tokens` (of a micro-batch) from a large matrix's copy. `meta` tensors and
    repeated storages are not counted.
    """

    def __init__(self, vocab_size: int | None = None, tokens: int | None = None):
        super().__init__()
        self.timeline = Timeline()
        self.current_phase = "before"
        self._vocab_size, self._tokens = vocab_size, tokens
        self._identities: dict[int, int] = {}
        self._holders: Counter[int] = Counter()
        self._summed_in_place: torch.Size | None = None
        self._appeared: dict[int, tuple[int, list[Event]]] = {}

    def phase(self, name: str) -> None:
        """Everything from here on belongs to phase `name`."""
        self.current_phase = name

    def watch(self, part: str, tensors: Iterable[torch.Tensor]) -> None:
        """Count the tensors' storages as `part` (one of `labs_utils.answer.PARTS`), from their first event on."""
        for tensor in tensors:
            identity = self._note(tensor, "watched")
            if identity is not None:
                self.timeline.part_of[identity] = part

    def sums_in_place(self, parameter: torch.Tensor) -> None:
        """Count the sum of a parameter's two gradients in backward as written over the first, as autograd writes it.

        A dispatch mode keeps autograd from that: torch/csrc/autograd/input_buffer.cpp, `can_accumulate_inplace`.
        """
        self._summed_in_place = parameter.shape

    def hold(self, nbytes: int, operator: str, part: str = "workspace") -> int:
        """Count bytes that no tensor shows; returns their identity, for `release`."""
        identity = len(self._appeared)
        events = self.timeline.host_events if _storages_are_on_host else self.timeline.events
        self._appeared[identity] = nbytes, events
        events.append(Event(identity, nbytes, self.current_phase, operator))
        self.timeline.part_of[identity] = part
        return identity

    def release(self, identity: int) -> None:
        """The bytes with that identity are gone."""
        nbytes, events = self._appeared[identity]
        events.append(Event(identity, -nbytes, self.current_phase, "free"))

    def after_operator(self, func, args) -> None:
        """Called after each operator has run and been counted."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.add.Tensor and self._is_summed_in_place(result):
            self._share(result, args[0])
        for value in tree_iter(result):
            if isinstance(value, torch.Tensor):
                self._note(value, str(func))
        self.after_operator(func, args)
        return result

    def _is_summed_in_place(self, result: torch.Tensor) -> bool:
        return "backward" in self.current_phase and result.shape == self._summed_in_place

    def _share(self, tensor: torch.Tensor, first: torch.Tensor) -> None:
        """Count a tensor as the memory of another one."""
        identity = self._identities[first.untyped_storage()._cdata]
        self._identify(tensor.untyped_storage(), identity)

    def _note(self, tensor: torch.Tensor, operator: str) -> int | None:
        """The identity of a tensor's storage, which is counted if it is new; None if it has no bytes."""
        storage = tensor.untyped_storage()
        if storage._cdata in self._identities:
            return self._identities[storage._cdata]
        if not storage.nbytes() or tensor.device.type == "meta":
            return None
        identity = self.hold(storage.nbytes(), operator, "logits" if self._is_logits(tensor) else "activations")
        self._identify(storage, identity)
        return identity

    def _is_logits(self, tensor: torch.Tensor) -> bool:
        if not self._vocab_size or not tensor.dim() or tensor.shape[-1] != self._vocab_size:
            return False
        return self._tokens is None or tensor.numel() == self._tokens * self._vocab_size

    def _identify(self, storage: torch.UntypedStorage, identity: int) -> None:
        self._identities[storage._cdata] = identity
        self._holders[identity] += 1
        weakref.finalize(storage, self._forget, storage._cdata, identity).atexit = False

    def _forget(self, key: int, identity: int) -> None:
        del self._identities[key]
        self._holders[identity] -= 1
        if not self._holders[identity]:
            self.release(identity)
