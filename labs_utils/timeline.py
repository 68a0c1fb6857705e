"""A `Timeline`: every tensor storage that appears and goes during a step, and what is read off it.

Whoever writes one (the tracker by watching operators, the symbolic step by naming them), it is read the same way.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import NamedTuple

from labs_utils.allocator import CachingAllocator, OutOfMemory, pinned_bytes
from labs_utils.answer import PARTS, PHASES

DEFAULT_PART = "activations"


class Event(NamedTuple):
    """A storage that appears (`change_bytes` > 0) or goes (< 0), in a phase, by an operator."""

    storage: int
    change_bytes: int
    phase: str
    operator: str


@dataclass(frozen=True)
class Moment:
    """The bytes live after one event, by part; `parts` sum to `live_bytes`."""

    event: Event
    live_bytes: int
    parts: dict[str, int]


@dataclass
class Timeline:
    """The events in order. `part_of` says what a storage is (one of `labs_utils.answer.PARTS`; else activations).

    `host_events` are those of storages that wait in the host's memory; they are in no moment and no peak. On a GPU's
    host they are pinned, but for those in `pageable`.

    >>> events = [Event(0, 8, "forward", "mm"), Event(1, 4, "forward", "silu"), Event(0, -8, "backward", "free")]
    >>> peak = Timeline(events, part_of={0: "logits"}).peak()
    >>> peak.live_bytes, peak.event.operator, peak.parts["logits"]
    (12, 'silu', 8)
    """

    events: list[Event] = field(default_factory=list)
    part_of: dict[int, str] = field(default_factory=dict)
    host_events: list[Event] = field(default_factory=list)
    pageable: set[int] = field(default_factory=set)

    def moments(self, phases: tuple[str, ...] = PHASES) -> Iterator[Moment]:
        """The step moment by moment, in the phases asked for, beginning with what is live as the first one begins."""
        live, total, begun = dict.fromkeys(PARTS, 0), 0, False
        for event in self.events:
            if event.phase in phases and not begun:
                begun = True
                yield Moment(event, total, dict(live))
            part = self.part_of.get(event.storage, DEFAULT_PART)
            live[part] += event.change_bytes
            total += event.change_bytes
            if event.phase in phases:
                yield Moment(event, total, dict(live))

    def peak(self, *phases: str) -> Moment:
        """The first moment with the most live bytes, in the whole step or in some of its phases.

        Raises:
            ValueError: if nothing happened in those phases.
        """
        phases = phases or PHASES
        inside = [index for index, event in enumerate(self.events) if event.phase in phases]
        if not inside:
            raise ValueError(f"nothing was recorded in phase {' or '.join(phases)}")
        live = list(accumulate((event.change_bytes for event in self.events), initial=0))
        passed = max([inside[0], *(index + 1 for index in inside)], key=live.__getitem__)
        return Moment(self.events[max(passed - 1, inside[0])], live[passed], self._parts_after(passed))

    def most_bytes(self) -> int:
        """The most live bytes at all, also before the step."""
        return max(accumulate((event.change_bytes for event in self.events), initial=0))

    def phase_peak_bytes(self) -> dict[str, int]:
        """The most live bytes in each phase of a step, of which none may be missing."""
        live, peaks = 0, {}
        for _, change_bytes, phase, _ in self.events:
            before = peaks.get(phase, live)
            live += change_bytes
            peaks[phase] = max(before, live)
        return {phase: peaks[phase] for phase in PHASES}

    def _parts_after(self, count: int) -> dict[str, int]:
        """The live bytes of each part after so many events."""
        parts = dict.fromkeys(PARTS, 0)
        for event in self.events[:count]:
            parts[self.part_of.get(event.storage, DEFAULT_PART)] += event.change_bytes
        return parts

    def repeat(self, prefix: str, added: int) -> None:
        """The phases with a prefix once more, without it: what came and went in them does so again, what stayed stays.

        Storages that come again are new ones, with identities larger by `added`.
        """
        for events in (self.events, self.host_events):
            step = [event for event in events if event.phase.startswith(prefix)]
            gone = {storage for storage, change_bytes, *_ in step if change_bytes <= 0}
            self.part_of |= {key + added: self.part_of[key] for key in gone & self.part_of.keys()}
            events += (
                Event(storage + added, change_bytes, phase.removeprefix(prefix), operator)
                for storage, change_bytes, phase, operator in step
                if storage in gone
            )

    def host_peak_bytes(self, pinned: bool = False) -> int:
        """The most bytes that wait in the host's memory at once; `pinned` in the blocks of pinned memory."""

        def change(event: Event) -> int:
            if not pinned or event.storage in self.pageable:
                return event.change_bytes
            return int(math.copysign(pinned_bytes(abs(event.change_bytes)), event.change_bytes))

        return max(accumulate(map(change, self.host_events)), default=0)

    def in_blocks(self) -> tuple[Timeline, int]:
        """The same events in the blocks that PyTorch's CUDA caching allocator gives out, and the bytes it reserves."""
        allocator = CachingAllocator()
        return replace(self, events=self._replayed(allocator)), allocator.reserved_bytes

    def fits_in(self, limit_bytes: int) -> bool:
        """Whether that allocator finds a place for every block in so many bytes, however they are fragmented."""
        try:
            self._replayed(CachingAllocator(limit_bytes))
        except OutOfMemory:
            return False
        return True

    def _replayed(self, allocator: CachingAllocator) -> list[Event]:
        """The events with the sizes of the blocks that the allocator gives out and takes back."""
        blocks, events = {}, []
        for storage, change_bytes, phase, operator in self.events:
            if change_bytes > 0:
                block = blocks[storage] = allocator.allocate(change_bytes)
                change_bytes = block.size
            elif change_bytes < 0:
                block = blocks.pop(storage)
                change_bytes = -block.size
                allocator.free(block)
            events.append(Event(storage, change_bytes, phase, operator))
        return events
