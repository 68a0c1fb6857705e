"""`lab03.largest_micro_batch`: the largest micro-batch that fits, found in few calls, held against steps that run."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from functools import cache, partial
from json import dumps, loads

import torch

from labs_utils.answers.estimate import estimate
from labs_utils.device import CPU
from labs_utils.exercises.contract import Mark
from labs_utils.exercises.lab03.tracked_run import draw_width, small_model, tracked_micro_steps
from labs_utils.exercises.marking import close, exercise_of_situations
from labs_utils.run import Run

MOST_CALLS = 20
UNESTIMATED_BYTES = 64  # tensors of one number, which a tracked peak has and an estimated one hasn't


def draw_searches(rng) -> dict:
    """Devices that many sequences fit on to the last byte, a power of two too, that one fits on, and none."""
    return {
        "many fit": draw_search(rng, int(rng.integers(65, 110))),
        "a power of two fits": draw_search(rng, 2 ** int(rng.integers(3, 6))),
        "one fits": draw_search(rng, 1),
        "none fits": draw_search(rng, 0),
    }


def draw_search(rng, fits: int) -> dict:
    """A run whose peak is at the end of backward for small micro-batches, and memory for `fits` sequences."""
    width = draw_width(rng)
    settings = {"model": small_model(width, layers=int(rng.integers(1, 3)), vocab_size=100 * int(rng.integers(2, 6)))}
    settings["seq_len"] = 2 * int(rng.integers(2, 6)) if fits > 1 else 96
    enough = peak_bytes(settings, fits) if fits else 0
    spare = 0 if fits > 1 else rng.uniform(0.2, 0.8) * (peak_bytes(settings, fits + 1) - enough)
    return {"run": settings, "memory_bytes": int(enough + spare)}


def peak_bytes(settings: dict, micro_batch: int) -> int:
    """The estimated peak of a run with that micro-batch, on a CPU: what its tensors take."""
    return estimated_bytes(dumps({**settings, "micro_batch": micro_batch}))


@cache
def estimated_bytes(run_json: str) -> int:
    """`estimate`'s peak bytes of a run on a CPU, each run asked once."""
    with torch.enable_grad():
        return estimate(Run.parse(loads(run_json)), CPU).peak_bytes


def searched(function: Callable, situation: dict) -> dict:
    """What `function` finds, and with how many calls."""
    tried = []

    def counted(micro_batch: int) -> int:
        tried.append(micro_batch)
        return peak_bytes(situation["run"], int(micro_batch))

    return {"micro_batch": function(counted, situation["memory_bytes"]), "calls": len(tried)}


def largest_that_fits(situation: dict) -> int:
    """The largest micro-batch within the memory: the estimate finds it, and steps that run confirm it."""
    largest = bisect_right(range(1, 1000), situation["memory_bytes"], key=partial(peak_bytes, situation["run"]))
    while fits(situation, largest + 1):
        largest += 1
    while largest and not fits(situation, largest):
        largest -= 1
    return largest


def fits(situation: dict, micro_batch: int) -> bool:
    """Whether a step that really runs stays within the memory."""
    timeline = tracked_micro_steps(dumps({**situation["run"], "micro_batch": micro_batch}))
    return timeline.peak("0", "optimizer").live_bytes <= situation["memory_bytes"] + UNESTIMATED_BYTES


def compare_search(situation: dict, got: dict, expected: int) -> Mark:
    """Half for a right answer that took too many calls."""
    mark = close(situation, got["micro_batch"], expected)
    if mark.score < 1:
        sentence, got_one = f"{mark.sentence}: does it fit, and does one more not fit?", got["micro_batch"]
        is_large = type(got_one) in (int, float) and got_one > expected
        return mark._replace(sentence=sentence, cause="too large" if is_large else "too small")
    if got["calls"] > MOST_CALLS:
        many = f"right, but with {got['calls']} calls; {MOST_CALLS} are allowed"
        return Mark(0.5, f"{many}: halve what is left each time", "many calls")
    return mark


EXERCISE = exercise_of_situations(
    id="lab03.largest_micro_batch",
    points=3,
    minutes=20,
    difficulty="medium",
    draw=draw_searches,
    call=searched,
    truth=largest_that_fits,
    compare=compare_search,
    hints={
        "too large": (
            "Keep two ends: one that fits and one that doesn't. The answer is the one that fits; where not even 1 "
            "fits it is 0."
        ),
        "too small": (
            "First find a micro-batch that doesn't fit: double until it happens. For small ones the peak may not "
            "move at all, so two of them don't tell how it grows."
        ),
        "many calls": "Try the middle between the two ends, and keep the half whose ends differ.",
    },
    why="More sequences never need less memory, so each try halves the range that is left. "
    "Doubling first finds such a range, however large the answer is.",
    self_reported="the number of calls",
    forbidden=("labs_utils",),
)
