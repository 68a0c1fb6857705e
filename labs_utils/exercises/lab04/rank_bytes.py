"""`lab04.rank_bytes`: bytes that a rank holds at each stage, held against DeepSpeed's own."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from labs_utils.exercises.contract import Mark
from labs_utils.exercises.lab04.stages import STAGES
from labs_utils.exercises.marking import close, exercise_of_situations
from labs_utils.workers.silent_peers import KINDS, lone_rank


def draw_models(rng) -> dict:
    """A model of parameters that don't divide, and a number of ranks: one situation for each stage."""
    ranks, numels = int(rng.integers(3, 10)), []
    while -(-sum(numels) // ranks) % 2 == 0:  # an odd share is one that DeepSpeed rounds up
        numels = [int(n) | 1 for n in rng.integers(20, 90, size=12)]
    return {f"stage {stage}": {"numels": numels, "stage": stage, "world_size": ranks} for stage in STAGES}


def held_by_deepspeed(situation: dict) -> dict:
    """What DeepSpeed holds on rank 0, without the rest of a gradient that reaches into the next rank's part."""
    held = dict(lone_rank(situation["numels"], situation["stage"], situation["world_size"])["held"])
    if situation["stage"] == 2:
        share = held["master_weights"] // 4
        ends = accumulate(situation["numels"])
        held["gradients"] -= 2 * (next(end for end in ends if end >= share) - share)
    return held


def compare_held(situation: dict, got: Any, truth: dict) -> Mark:
    """A quarter for each kind of tensor."""
    mark = close(situation, got, truth)
    wrong = mark.sentence.partition(":")[0]
    if wrong not in KINDS:
        return mark
    cause, question = held_question(got[wrong], truth[wrong])
    return mark._replace(sentence=f"{mark.sentence}: {question}", cause=cause)


def held_question(got: Any, truth: int) -> tuple[str, str]:
    """The cause of a wrong byte count, as far as it can be seen, and the question that it leads to."""
    if type(got) in (int, float) and abs(got - truth) < 0.1 * truth:
        return (
            "padding",
            "nearly; what is padded, all parameters in a row or each by itself, and to a multiple of what?",
        )
    cause = "whole" if type(got) in (int, float) and got > truth else "part"
    return cause, "is this kind whole or a part at this stage, and how many bytes does an element take?"


EXERCISE = exercise_of_situations(
    id="lab04.rank_bytes",
    points=3,
    minutes=20,
    difficulty="medium",
    draw=draw_models,
    call=lambda fn, situation: fn(situation["numels"], situation["stage"], situation["world_size"]),
    truth=held_by_deepspeed,
    compare=compare_held,
    hints={
        "padding": (
            "At stages 1 and 2, cut sum(numels), rounded up to a multiple of 2 * world_size. At stage 3, cut each "
            "parameter by itself, rounded up to a multiple of world_size, and add the parts up."
        ),
        "whole": (
            "Stage 1 cuts master weights and moments, stage 2 gradients too, stage 3 everything: is this kind a "
            "part here?"
        ),
        "part": (
            "Is this kind whole at this stage? Weights and gradients take 2 bytes an element, master weights 4, "
            "the two moments 8."
        ),
    },
    why="A stage divides one more kind of state, and padding rounds each share up. "
    "What isn't divided is there on every rank.",
    forbidden=("labs_utils", "deepspeed"),
)
