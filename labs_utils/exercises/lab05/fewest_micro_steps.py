"""`lab05.fewest_micro_steps`: micro-steps after which offload costs little, held against adding them up one by one."""

from __future__ import annotations

from typing import Any

from labs_utils.exercises.contract import Mark
from labs_utils.exercises.marking import AS_EXPECTED, exercise_of_situations

MOST_MICRO_STEPS = 10**5


def draw_bounds(rng) -> dict:
    """Bounds that are met at once, after some micro-steps, after many, only at first, exactly, and never.

    Updates are as long as micro-steps, so that what they do to the bound shows. `later`: by how many micro-steps' time
    the offloaded update is above the bound on the other. Where it is below, one micro-step is enough, and more may not
    be.
    """
    bounds = {}
    for name, bound, each, later in (
        ("at once", 6.0, 0.0, rng.uniform(1.0, 3.0)),
        ("after some", 1.25, 0.0, rng.uniform(1.0, 4.0)),
        ("after many", 1.02, 0.0, rng.uniform(2.0, 4.0)),
        ("more each time", 1.5, 0.3, rng.uniform(1.0, 4.0)),
        ("only at first", 1.5, 0.6, rng.uniform(-0.7, -0.3)),
        ("never", 1.2, 0.4, rng.uniform(1.0, 4.0)),
    ):
        micro = float(rng.uniform(0.3, 2.0))
        update = float(rng.uniform(1.5, 3.0)) * micro
        once = bound * update + float(later) * micro
        bounds[name] = {
            "micro": micro, "update": update, "each": each * micro, "once": once, "bound": bound
        }  # fmt: skip
    return bounds | draw_exact_bounds(rng)


def draw_exact_bounds(rng) -> dict:
    """Bounds that are met to the last bit, all in powers of two; and one that micro-steps never come nearer to."""
    bounds = {}
    for name, each, late in (
        ("exactly", 0.0, int(rng.integers(2, 9))),
        ("exactly, more each time", 0.5, int(rng.integers(2, 9)) / 2),
        ("exactly, only at first", 1.5, -0.5),
        ("nothing gained", 1.0, int(rng.integers(1, 9))),
    ):
        micro = 2.0 ** int(rng.integers(-2, 2))
        update = micro * int(rng.integers(3, 7)) / 2
        once = 2 * update + late * micro
        bounds[name] = {"micro": micro, "update": update, "each": each * micro, "once": once, "bound": 2.0}
    return bounds


def added_up(micro: float, update: float, each: float, once: float, bound: float) -> int:
    """Micro-step after micro-step, until the bound is kept; -1 if it never is.

    >>> added_up(micro=1.0, update=2.0, each=0.0, once=6.0, bound=2.0)
    2
    """
    plain_seconds, offloaded = update, once
    for micro_steps in range(1, MOST_MICRO_STEPS):
        plain_seconds += micro
        offloaded += micro + each
        if offloaded <= bound * plain_seconds:
            return micro_steps
    return -1


def compare_count(situation: dict, got: Any, truth: int) -> Mark:
    """Right or wrong, and whether it is too many, too few, or none where some would do."""
    expected = truth if truth >= 0 else None
    if got == expected and type(got) is type(expected):
        return AS_EXPECTED
    if expected is None:
        return Mark(
            0.0, f"no number of micro-steps is enough here, got {got!r}: what is added in each of them?"[:200], "none"
        )
    if got is None:
        question = "can one be enough where more are not?"
        return Mark(0.0, f"{expected:,} micro-steps are enough here, got None: {question}", "some")
    if type(got) is not int:
        return Mark(0.0, f"expected a whole number of micro-steps, got {got!r}"[:200])
    if got > expected:
        return Mark(0.0, f"{got:,} micro-steps keep the bound, but so do {expected:,}", "too many")
    return Mark(0.0, f"expected {expected:,} micro-steps, got {got:,}: that is still too slow", "too few")


EXERCISE = exercise_of_situations(
    id="lab05.fewest_micro_steps",
    points=2,
    minutes=15,
    difficulty="medium",
    draw=draw_bounds,
    call=lambda fn, situation: fn(*(situation[key] for key in ("micro", "update", "each", "once", "bound"))),
    truth=lambda situation: added_up(**situation),
    compare=compare_count,
    hints={
        "none": (
            "If `each` is as much as the bound allows or more, no number of micro-steps helps: unless one is "
            "enough already, the answer is None."
        ),
        "some": "One micro-step can be enough where more are not: look at what is missing before you divide.",
        "too many": (
            "Both steps are straight lines in the number of micro-steps: where is one `bound` times the other? At "
            "least 1."
        ),
        "too few": "Round up to a whole number; the update is part of both steps.",
    },
    why="The cost of offload is paid once a step. More micro-steps divide it, until it is the share that you allow.",
    forbidden=("labs_utils",),
)
