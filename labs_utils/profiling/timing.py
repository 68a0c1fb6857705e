"""The one way to time here: warm up, wait for the device, repeat, and take the median with its spread."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable

from pydantic import BaseModel, NonNegativeFloat

FEWEST_REPEATS = 3
WINDOWS, WINDOW_SECONDS, MOST_CALLS = 3, 0.03, 50
LEAD_SIZE, LEAD_CALLS = 8192, 10  # products that keep the GPU busy while the calls to be timed are queued


class Spread(BaseModel, frozen=True):
    """The median of repeated measurements, and the values that a fifth of them lie at or below, and at or above."""

    median: NonNegativeFloat
    p20: NonNegativeFloat
    p80: NonNegativeFloat

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """The spread of one or more values.

        >>> Spread.of([5, 1, 4, 2, 3])
        Spread(median=3.0, p20=2.0, p80=4.0)
        """
        ordered = sorted(values)
        fifth = len(ordered) // 5
        return cls(median=statistics.median(ordered), p20=ordered[fifth], p80=ordered[-1 - fifth])

    def rate(self, amount: float) -> Spread:
        """Of seconds that `amount` took: amount per second. The slowest fifth is now below.

        >>> Spread(median=2.0, p20=1.0, p80=4.0).rate(100)
        Spread(median=50.0, p20=25.0, p80=100.0)
        """
        return Spread(median=amount / self.median, p20=amount / self.p80, p80=amount / self.p20)


def synchronize(device="cuda") -> None:
    """Wait until the device (a name, or a `torch.device`) has finished; a CPU has when a call returns."""
    if str(device).startswith("cuda"):
        import torch

        torch.cuda.synchronize(device)


def time_call(work: Callable[[], object], device="cpu") -> float:
    """Seconds of one call, begun and ended with nothing left to do on the device."""
    synchronize(device)
    begin = time.perf_counter()
    work()
    synchronize(device)
    return time.perf_counter() - begin


def time_calls(
    work: Callable[[], object], device="cpu", warmups: int = 2, repeats: int = 15, budget_seconds: float = 1.0
) -> Spread:
    """Seconds a call, over `repeats` calls after `warmups` that don't count.

    Calls that together take longer than `budget_seconds` are repeated less, though at least three times.
    """
    for _ in range(warmups):
        work()
    seconds: list[float] = []
    while len(seconds) < FEWEST_REPEATS or (len(seconds) < repeats and sum(seconds) < budget_seconds):
        seconds.append(time_call(work, device))
    return Spread.of(seconds)


def back_to_back(work: Callable[[], object]) -> Spread:
    """Seconds that a call takes the GPU when the next ones wait for it there: launching is left out."""
    import torch

    lead = torch.randn(LEAD_SIZE, LEAD_SIZE, device="cuda", dtype=torch.float16)
    calls = int(min(MOST_CALLS, max(3, WINDOW_SECONDS / time_calls(work, "cuda", repeats=3).median)))
    return Spread.of(one_window(work, lead, calls) for _ in range(WINDOWS))


def one_window(work: Callable[[], object], lead, calls: int) -> float:
    """Seconds a call of so many that wait behind products of `lead`."""
    import torch

    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(LEAD_CALLS):
        lead @ lead
    begin.record()
    for _ in range(calls):
        work()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1e3 / calls
