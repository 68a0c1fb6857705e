"""A few real steps on this process's GPU: the peaks of the first steps, and a snapshot of one step's memory."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from labs_utils.profiling.phase_clock import PhaseClock
from labs_utils.run import Run
from labs_utils.training.step import TrainingStep

MOST_EVENTS = 100_000  # allocations and frees that a snapshot keeps


@contextmanager
def step_on_gpu(run: Run) -> Iterator[TrainingStep]:
    """A step of a run on the GPU, whose memory is given back at the end."""
    steps = [TrainingStep(run, "cuda")]
    try:
        yield steps[0]
    finally:
        steps.clear()
        gc.collect()
        torch._C._cuda_clearCublasWorkspaces()  # they would keep whole segments from being given back
        torch.cuda.empty_cache()


def backward_peaks(run: Run, steps: int = 2) -> list[int]:
    """The most bytes that tensors hold in backward, in each of a run's first steps on the GPU."""
    peaks = []
    with step_on_gpu(run) as step:
        for _ in range(steps):
            clock = PhaseClock(step.device)
            step(clock.begin)
            clock.end()
            peaks.append(clock.peak_bytes["backward"])
        del step
    return peaks


def memory_snapshot(run: Run, path: str | Path) -> Path:
    """Write what every block of a warm step on the GPU was for, as pytorch.org/memory_viz reads it; returns the path.

    It is what PyTorch's guide "Understanding CUDA memory usage" describes, and holds the source line of each block.
    """
    path = Path(path)
    with step_on_gpu(run) as step:
        step()
        torch.cuda.memory._record_memory_history(max_entries=MOST_EVENTS, stacks="python")
        try:
            step()
            torch.cuda.memory._dump_snapshot(str(path))
        finally:
            torch.cuda.memory._record_memory_history(enabled=None)
        del step
    return path
