"""Toy exercises in numpy: one plain number, one dict of parts, one with a memory property."""

from functools import partial

import numpy as np

from labs_utils.exercises.contract import Exercise
from labs_utils.exercises.marking import close, with_cause

# At this size a float64 matrix of all pairs takes 200 MB, and one row of it 40 kB.
PAIRS = 5000


def compare_mean(case, answer, truth):
    values = case["values"]
    mistakes = {"averaged first": float(np.mean(values)) ** 2, "not averaged": float(np.sum(np.square(values)))}
    return with_cause(close(case, answer, truth, rel=1e-9), answer, mistakes, rel=1e-9)


mean_square = Exercise(
    id="lab90.mean_square",
    points=1,
    draw=lambda rng: {"values": [int(value) for value in rng.integers(-9, 10, 5)]},
    call=lambda fn, case: fn(case["values"]),
    truth=lambda case: float(np.mean(np.square(case["values"]))),
    compare=compare_mean,
    hints={"averaged first": "Square before you average.", "not averaged": "Divide by len(values)."},
    forbidden=("numpy.mean", "statistics"),
)

extremes = Exercise(
    id="lab90.extremes",
    points=2,
    draw=lambda rng: rng.standard_normal(8),
    call=lambda fn, case: fn(case),
    truth=lambda case: {"low": float(case.min()), "high": float(case.max())},
    compare=close,
)

mean_distance = Exercise(
    id="lab90.mean_distance",
    points=2,
    draw=lambda rng: {"values": rng.standard_normal(PAIRS)},
    call=lambda fn, case: float(fn(case["values"])),
    # In sorted order value i is the larger one of i pairs and the smaller one of n - 1 - i.
    truth=lambda case: float(np.sort(case["values"]) @ (2 * np.arange(PAIRS) - PAIRS + 1) * 2 / PAIRS**2),
    compare=partial(close, rel=1e-9),
)

EXERCISES = (mean_square, extremes, mean_distance)
