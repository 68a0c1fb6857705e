"""`lab02.segment_layers`: how many layers to checkpoint as one segment, held against tracked peaks of every size."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from labs_utils.exercises.contract import Mark
from labs_utils.exercises.marking import AS_EXPECTED, close, exercise_of_situations
from labs_utils.exercises.saved_bytes import KeepsBytes
from labs_utils.profiling.tracker import MemoryTracker

# Layers, and how many inputs each keeps: here the short last segment decides which size is best.
SHORT_ENDS = ((35, 1), (40, 1), (45, 1), (30, 2), (33, 2), (44, 2), (39, 3), (42, 3))


def draw_stacks(rng) -> dict:
    """Layers that keep hardly anything, a little more than their input, several times it, and as much as a Llama's."""
    layers, times = SHORT_ENDS[int(rng.integers(len(SHORT_ENDS)))]
    return {
        "layers that keep hardly anything": draw_stack(rng, int(rng.integers(3, 9)), 1 / 64),
        "layers that keep little": draw_stack(rng, layers, times),
        "a prime number of layers": draw_stack(rng, int(rng.choice([31, 37, 41, 43])), int(rng.integers(1, 5))),
        "layers that keep more": draw_stack(rng, int(rng.integers(22, 30)), int(rng.integers(5, 9))),
        "layers that keep a lot": draw_stack(rng, int(rng.integers(10, 21)), int(rng.integers(25, 33))),
    }


def draw_stack(rng, layers: int, times: float) -> dict[str, int]:
    """Layers that keep so many times their input."""
    input_bytes = 1024 * int(rng.integers(1, 9))
    return {"layers": layers, "input_bytes": input_bytes, "layer_bytes": int(times * input_bytes)}


@cache
def segment_peaks(layers: int, input_bytes: int, layer_bytes: int) -> list[int]:
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


def compare_size(situation: dict, got: Any, peaks: list) -> Mark:
    """Right where the tracked peak of `got` layers a segment is the lowest, to within half an input."""
    best, fewest = min(peaks), 1 + peaks.index(min(peaks))
    if type(got) is not int or not 1 <= got <= len(peaks):
        return close(situation, got, fewest)._replace(cause="no size")
    if peaks[got - 1] <= best + situation["input_bytes"] // 2:
        return AS_EXPECTED
    sentence = f"with {got} layers a segment the peak is {peaks[got - 1] / best:.3g} times the lowest that is possible"
    better = "fewer" if got > fewest else "more"
    return Mark(0.0, f"{sentence}: {better} would be better", better)


EXERCISE = exercise_of_situations(
    id="lab02.segment_layers",
    cases=2,
    points=2,
    minutes=15,
    difficulty="medium",
    draw=draw_stacks,
    call=lambda fn, stack: fn(stack["layers"], stack["input_bytes"], stack["layer_bytes"]),
    truth=lambda stack: segment_peaks(**stack),
    compare=compare_size,
    hints={
        "no size": (
            "A size is a whole number from 1 to layers: try every one, there is no need for a formula of the best."
        ),
        "fewer": (
            "While segment i is computed again, all its layers' activations are there: that grows with the "
            "segment. The last segment may be short."
        ),
        "more": (
            "Segments after i are done and their inputs gone, but i inputs are alive: many short segments keep many."
        ),
    },
    why="Two terms compete: kept inputs fall with longer segments, and one segment's activations grow. "
    "Their sum is smallest near the square root.",
    forbidden=("labs_utils", "torch.utils.checkpoint", "torch_checkpoint"),
)
