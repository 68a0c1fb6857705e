"""Stacks of layers cut into segments that are checkpointed as a whole, and the peaks that the tracker sees."""

from __future__ import annotations

from functools import cache

import torch
from torch.utils.checkpoint import checkpoint

from labs_utils.exercises.kept import KeepsBytes
from labs_utils.profiling.tracker import MemoryTracker

# Layers, and how many inputs each keeps: here the short last segment decides which size is best.
SHORT_ENDS = ((35, 1), (40, 1), (45, 1), (30, 2), (33, 2), (44, 2), (39, 3), (42, 3))


def draw_stacks(rng) -> dict:
    """Layers that keep little more than their input, several times as much, and as much as a Llama's."""
    layers, times = SHORT_ENDS[int(rng.integers(len(SHORT_ENDS)))]
    return {
        "layers that keep little": draw_stack(rng, layers, times),
        "a prime number of layers": draw_stack(rng, int(rng.choice([31, 37, 41, 43])), int(rng.integers(1, 5))),
        "layers that keep more": draw_stack(rng, int(rng.integers(22, 30)), int(rng.integers(5, 9))),
        "layers that keep a lot": draw_stack(rng, int(rng.integers(10, 21)), int(rng.integers(25, 33))),
    }


def draw_stack(rng, layers: int, times: int) -> dict[str, int]:
    input_bytes = 1024 * int(rng.integers(1, 9))
    return {"layers": layers, "input_bytes": input_bytes, "layer_bytes": times * input_bytes}


def measured(layers: int, input_bytes: int, layer_bytes: int) -> dict:
    """The peaks of a stack, and the bytes of one input."""
    return {"peaks": stretch_peaks(layers, input_bytes, layer_bytes), "input_bytes": input_bytes}


@cache
def stretch_peaks(layers: int, input_bytes: int, layer_bytes: int) -> list[int]:
    """The peak of a real forward and backward with segments of 1, 2, … and all layers."""
    return [tracked_peak(layers, input_bytes, layer_bytes, each) for each in range(1, layers + 1)]


def tracked_peak(layers: int, input_bytes: int, layer_bytes: int, each: int) -> int:
    """The most bytes alive in a step over segments of `each` layers, the last one shorter if need be.

    What is kept as a segment's input is a tensor beside the hidden state, which is a single number, so that hidden
    states and gradients on their way hardly count.
    """

    def segment(hidden: torch.Tensor, kept: torch.Tensor, count: int) -> torch.Tensor:
        for _ in range(count):
            hidden = KeepsBytes.apply(hidden, layer_bytes)
        return hidden

    with torch.enable_grad(), MemoryTracker() as tracker:
        tracker.phase("backward")
        hidden = torch.zeros(1, requires_grad=True)
        for start in range(0, layers, each):
            kept = torch.empty(input_bytes, dtype=torch.uint8)
            hidden = checkpoint(segment, hidden, kept, min(each, layers - start), use_reentrant=False)
        del kept
        hidden.backward(torch.ones_like(hidden))
    return tracker.timeline.peak("backward").live_bytes
