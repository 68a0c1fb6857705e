"""Stacks of layers cut into segments that are checkpointed as a whole, and the peaks that the tracker sees."""

from __future__ import annotations

import torch
from torch.utils.checkpoint import checkpoint

from labs_utils.tracker import MemoryTracker


def draw_stacks(rng) -> dict:
    """Layers that keep little more than their input, several times as much, and as much as a Llama's."""
    return {
        "layers that keep little": draw_stack(rng, layers=(26, 41), times=(2, 4)),
        "layers that keep more": draw_stack(rng, layers=(36, 49), times=(5, 9)),
        "layers that keep a lot": draw_stack(rng, layers=(10, 21), times=(25, 33)),
    }


def draw_stack(rng, layers: tuple[int, int], times: tuple[int, int]) -> dict[str, int]:
    input_bytes = 1024 * int(rng.integers(1, 9))
    return {
        "layers": int(rng.integers(*layers)),
        "input_bytes": input_bytes,
        "layer_bytes": int(rng.integers(*times)) * input_bytes,
    }


# Between 3 and 5 hidden states are on their way besides what the exercise counts, so equally good sizes differ by 2.
ON_THEIR_WAY = 2


def measured(layers: int, input_bytes: int, layer_bytes: int) -> dict:
    """The peaks of a stack, and the bytes of one input."""
    return {"peaks": stretch_peaks(layers, input_bytes, layer_bytes), "input_bytes": input_bytes}


def stretch_peaks(layers: int, input_bytes: int, layer_bytes: int) -> list[int]:
    """The peak of a real forward and backward with segments of 1, 2, … and all layers."""
    return [tracked_peak(layers, input_bytes, layer_bytes, each) for each in range(1, layers + 1)]


class KeepsBytes(torch.autograd.Function):
    """A layer that passes its input on and keeps so many bytes for backward."""

    @staticmethod
    def forward(ctx, hidden, nbytes):
        ctx.save_for_backward(torch.empty(nbytes, dtype=torch.uint8))
        return hidden.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.saved_tensors  # noqa: B018  asks for them, so that a checkpoint computes them again
        return gradient.clone(), None


def tracked_peak(layers: int, input_bytes: int, layer_bytes: int, each: int) -> int:
    """The most bytes alive in a step over segments of `each` layers, the last one shorter if need be."""

    def segment(hidden: torch.Tensor, count: int) -> torch.Tensor:
        for _ in range(count):
            hidden = KeepsBytes.apply(hidden, layer_bytes)
        return hidden

    with torch.enable_grad(), MemoryTracker() as tracker:
        tracker.phase("backward")
        hidden = torch.zeros(input_bytes // 4, requires_grad=True)
        for start in range(0, layers, each):
            hidden = checkpoint(segment, hidden, min(each, layers - start), use_reentrant=False)
        hidden.backward(torch.ones_like(hidden))
    return tracker.timeline.peak("backward").live_bytes
