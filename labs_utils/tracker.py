"""Live and peak bytes of every tensor storage, by part and phase: what a memory profiler sees, on any device.

A dispatch mode notes each storage when an operator returns it, and again when its last reference goes. What an
operator allocates and frees inside itself (kernel scratch, library workspaces) is not visible to it.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from labs_utils.answer import PARTS


@dataclass(frozen=True)
class Event:
    """A storage that appears (`change_bytes` > 0) or goes (< 0)."""

    storage: int
    change_bytes: int
    phase: str
    operator: str


@dataclass
class Timeline:
    """Everything that happened while a tracker was on."""

    events: list[Event] = field(default_factory=list)
    part_of: dict[int, str] = field(default_factory=dict)

    def live_bytes(self) -> list[dict[str, int]]:
        """Live bytes by part after each event."""
        live, steps = dict.fromkeys(PARTS, 0), []
        for event in self.events:
            live[self.part_of.get(event.storage, "activations")] += event.change_bytes
            steps.append(dict(live))
        return steps

    def peak(self, phase: str | None = None) -> tuple[int, Event, dict[str, int]]:
        """Peak bytes, the event that reached it and the bytes by part at that instant, over all phases or in one.

        Raises:
            ValueError: if nothing was tracked in that phase.
        """
        best, live = None, dict.fromkeys(PARTS, 0)
        total = 0
        for event in self.events:
            live[self.part_of.get(event.storage, "activations")] += event.change_bytes
            total += event.change_bytes
            if phase in (None, event.phase) and (best is None or total > best[0]):
                best = (total, event, dict(live))
        if best is None:
            raise ValueError(f"no tensor appeared in phase {phase!r}")
        return best


class MemoryTracker(TorchDispatchMode):
    """Context manager that records a `Timeline` of tensor storages.

    Call `watch(part, tensors)` for tensors that exist already, `phase(name)` as phases begin. `vocab_size` lets it
    tell logits from other activations. `meta` tensors and repeated storages are not counted.
    """

    def __init__(self, vocab_size: int | None = None):
        super().__init__()
        self.timeline = Timeline()
        self._vocab_size = vocab_size
        self._phase = "before"
        self._ids: dict[int, int] = {}
        self._next_id = 0

    def phase(self, name: str) -> None:
        """Everything from here on belongs to phase `name`."""
        self._phase = name

    def watch(self, part: str, tensors: Iterable[torch.Tensor]) -> None:
        """Count the tensors' storages as `part` (one of `labs_utils.answer.PARTS`), from their first event on."""
        for tensor in tensors:
            identity = self._note(tensor, "watched")
            if identity is not None:
                self.timeline.part_of[identity] = part

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for value in tree_iter(result):
            if isinstance(value, torch.Tensor):
                self._note(value, func)
        return result

    def _note(self, tensor: torch.Tensor, operator) -> int | None:
        """The identity of a tensor's storage; records it if it is new."""
        if tensor.device.type == "meta":
            return None
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._ids:
            return self._ids[key]
        nbytes = storage.nbytes()
        if not nbytes:
            return None
        identity = self._ids[key] = self._next_id
        self._next_id += 1
        self.timeline.events.append(Event(identity, nbytes, self._phase, str(operator)))
        if self._vocab_size and tensor.dim() and tensor.shape[-1] == self._vocab_size:
            self.timeline.part_of[identity] = "logits"
        weakref.finalize(storage, self._release, key, identity, nbytes).atexit = False
        return identity

    def _release(self, key: int, identity: int, nbytes: int) -> None:
        del self._ids[key]
        self.timeline.events.append(Event(identity, -nbytes, self._phase, "free"))
