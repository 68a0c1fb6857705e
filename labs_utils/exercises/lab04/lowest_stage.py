"""`lab04.lowest_stage`: the lowest stage that fits a card, held against what DeepSpeed needs at each."""

from __future__ import annotations

from typing import Any

from labs_utils.exercises.contract import Mark
from labs_utils.exercises.lab04.stages import STAGES, bytes_at
from labs_utils.exercises.marking import AS_EXPECTED, exercise_of_situations
from labs_utils.workers.silent_peers import lone_rank

MARGIN = 0.01  # between a card and what a stage needs: more than Adam's step counters
EACH = 4  # parameters of a rank, all of one size: no gradient reaches over a boundary between ranks


def draw_cards(rng) -> dict:
    """For each stage a card that is just large enough, and one just too small; and one rank, where no stage helps."""
    ranks = int(rng.integers(3, 9))
    numels = [2 * ranks * int(rng.integers(1000, 3000))] * (EACH * ranks)
    parameters, other = sum(numels), int(rng.integers(2, 12)) * sum(numels)
    settings = {"numels": numels, "world_size": ranks, "other_bytes": other}
    cards = {}
    for stage in STAGES:
        needed = bytes_at(stage, ranks) * parameters
        for name, factor in (("enough", 1 + MARGIN), ("too little", 1 - MARGIN)):
            cards[f"just {name} for stage {stage}"] = {**settings, "memory_bytes": int(factor * needed) + other}
    alone = {**settings, "world_size": 1, "memory_bytes": int(0.9 * bytes_at(0, 1) * parameters) + other}
    return {**cards, "a single rank": alone}


def lowest_that_fits(card: dict) -> dict:
    """The lowest stage at which what DeepSpeed holds leaves room for the rest, -1 for none; and what each needs."""
    held = [sum(lone_rank(card["numels"], stage, card["world_size"])["held"].values()) for stage in STAGES]
    needed = [nbytes + card["other_bytes"] for nbytes in held]
    fitting = [stage for stage in STAGES if needed[stage] <= card["memory_bytes"]]
    return {"lowest": min(fitting, default=-1), "needed": needed}


def compare_stage(card: dict, got: Any, expected: dict) -> Mark:
    """Right or wrong, with what DeepSpeed would need at the stage that was answered."""
    lowest = expected["lowest"] if expected["lowest"] >= 0 else None
    if got == lowest and type(got) is type(lowest):
        return AS_EXPECTED
    cause = "none fits" if lowest is None else "one fits"
    if type(got) is not int or got not in STAGES:
        return Mark(0.0, f"expected {'None' if lowest is None else 'a stage that fits'}, got {got!r}"[:200], cause)
    need, memory = expected["needed"][got], card["memory_bytes"]
    if need > memory:
        sentence = f"at stage {got} DeepSpeed needs {need:,} bytes, and {memory:,} are there"
        return Mark(0.0, sentence, "none fits" if lowest is None else "too low")
    return Mark(0.0, f"stage {got} fits, but it isn't the lowest that does", "too high")


EXERCISE = exercise_of_situations(
    id="lab04.lowest_stage",
    cases=2,
    points=3,
    minutes=20,
    difficulty="medium",
    draw=draw_cards,
    call=lambda fn, card: fn(sum(card["numels"]), card["world_size"], card["other_bytes"], card["memory_bytes"]),
    truth=lowest_that_fits,
    compare=compare_stage,
    hints={
        "too high": "A lower stage fits. Bytes per parameter: 16 at stage 0, 4 + 12/N at 1, 2 + 14/N at 2, 16/N at 3.",
        "too low": "What isn't divided is whole on every rank, and `other_bytes` are the same at every stage.",
        "none fits": "Not even stage 3 fits here: then the answer is None.",
        "one fits": "A stage does fit here: which?",
    },
    why="Every stage saves memory and stage 3 costs traffic, so the lowest stage that fits is the fastest. "
    "What no stage divides decides whether any fits.",
    forbidden=("labs_utils", "deepspeed"),
)
