"""`PhaseClock`: how long each phase of a training step takes and, on a GPU, how much memory it needs."""

from __future__ import annotations

import time

import torch

from labs_utils.profiling.timing import synchronize

ASIDE = "aside"  # a phase that doesn't count


class PhaseClock:
    """A clock for a step that is called with `begin` as its `on_phase`.

    `seconds` are those of each phase. `peak_bytes` are the peaks of the CUDA allocator in each phase, and empty on a
    CPU. A step that is watched waits for the device as each phase begins, so it takes a little longer than others.

    >>> clock = PhaseClock(torch.device("cpu"))
    >>> for phase in ("forward", "backward", ASIDE, "forward"):
    ...     clock.begin(phase)
    >>> clock.end()
    >>> list(clock.seconds), clock.peak_bytes
    (['forward', 'backward'], {})
    """

    def __init__(self, device: torch.device):
        self.device, self.phase = device, ASIDE
        self.seconds: dict[str, float] = {}
        self.peak_bytes: dict[str, int] = {}
        self._began = 0.0

    def begin(self, phase: str) -> None:
        """End the phase before, and begin this one."""
        synchronize(self.device)
        now = time.perf_counter()
        if self.phase != ASIDE:
            self.seconds[self.phase] = self.seconds.get(self.phase, 0.0) + now - self._began
        if self.device.type == "cuda":
            self._read_peak()
        self.phase, self._began = phase, now

    def end(self) -> None:
        """End the last phase."""
        self.begin(ASIDE)

    def _read_peak(self) -> None:
        """Keep the phase's peak so far, and let the allocator begin a new one."""
        if self.phase != ASIDE:
            peak_bytes = torch.cuda.max_memory_allocated(self.device)
            self.peak_bytes[self.phase] = max(peak_bytes, self.peak_bytes.get(self.phase, 0))
        torch.cuda.reset_peak_memory_stats(self.device)
