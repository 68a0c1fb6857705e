"""Live and peak bytes of every tensor storage, by part and phase: what a memory profiler sees, on any device.

A dispatch mode notes each storage when an operator returns it, and again when its last reference goes. What an
operator allocates and frees inside itself (kernel scratch, library workspaces) is not visible to it.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from labs_utils.timeline import Event, Timeline


class MemoryTracker(TorchDispatchMode):
    """Context manager that records a `Timeline` of tensor storages.

    Call `watch(part, tensors)` for tensors that exist already, `phase(name)` as phases begin. `vocab_size` lets it
    tell logits from other activations. `meta` tensors and repeated storages are not counted.
    """

    def __init__(self, vocab_size: int | None = None):
        super().__init__()
        self.timeline = Timeline()
        self.current_phase = "before"
        self._vocab_size = vocab_size
        self._identities: dict[int, int] = {}
        self._sizes: dict[int, int] = {}

    def phase(self, name: str) -> None:
        """Everything from here on belongs to phase `name`."""
        self.current_phase = name

    def watch(self, part: str, tensors: Iterable[torch.Tensor]) -> None:
        """Count the tensors' storages as `part` (one of `labs_utils.answer.PARTS`), from their first event on."""
        for tensor in tensors:
            identity = self._note(tensor, "watched")
            if identity is not None:
                self.timeline.part_of[identity] = part

    def hold(self, nbytes: int, operator: str, part: str = "workspace") -> int:
        """Count bytes that no tensor shows; returns their identity, for `release`."""
        identity = len(self._sizes)
        self._sizes[identity] = nbytes
        self.timeline.events.append(Event(identity, nbytes, self.current_phase, operator))
        self.timeline.part_of[identity] = part
        return identity

    def release(self, identity: int) -> None:
        """The bytes with that identity are gone."""
        self.timeline.events.append(Event(identity, -self._sizes[identity], self.current_phase, "free"))

    def after_operator(self, func, args) -> None:
        """Called after each operator has run and been counted."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for value in tree_iter(result):
            if isinstance(value, torch.Tensor):
                self._note(value, str(func))
        self.after_operator(func, args)
        return result

    def _note(self, tensor: torch.Tensor, operator: str) -> int | None:
        """The identity of a tensor's storage, which is counted if it is new; None if it has no bytes."""
        storage = tensor.untyped_storage()
        if storage._cdata in self._identities:
            return self._identities[storage._cdata]
        if not storage.nbytes() or tensor.device.type == "meta":
            return None
        is_logits = bool(self._vocab_size and tensor.dim() and tensor.shape[-1] == self._vocab_size)
        identity = self.hold(storage.nbytes(), operator, "logits" if is_logits else "activations")
        self._identities[storage._cdata] = identity
        weakref.finalize(storage, self._forget, storage._cdata, identity).atexit = False
        return identity

    def _forget(self, key: int, identity: int) -> None:
        del self._identities[key]
        self.release(identity)
