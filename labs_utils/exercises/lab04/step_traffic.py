"""`lab04.step_traffic`: bytes that a rank sends in a step, held against DeepSpeed's own collectives."""

from __future__ import annotations

from typing import Any

from labs_utils.exercises.contract import Mark
from labs_utils.exercises.lab04.stages import STAGES
from labs_utils.exercises.marking import compare_bytes, exercise_of_situations, with_cause
from labs_utils.workers.silent_peers import lone_rank, ring_bytes

TRAFFIC_TOLERANCE = 0.002  # flags and norms that are reduced as well, a few bytes in a hundred thousand


def draw_steps(rng) -> dict:
    """A model whose parameters divide evenly, ranks and micro-steps: one situation for each stage."""
    ranks = int(rng.integers(3, 10))
    numels = [2 * ranks * int(n) for n in rng.integers(1000, 3000, size=6)]
    settings = {"numels": numels, "world_size": ranks, "grad_accum": int(rng.integers(2, 5))}
    return {f"stage {stage}": {**settings, "stage": stage} for stage in STAGES}


def counted_traffic(situation: dict) -> int:
    """What DeepSpeed hands to collectives in a step, each of them a ring."""
    counted = lone_rank(situation["numels"], situation["stage"], situation["world_size"], situation["grad_accum"])
    return ring_bytes(counted["communicated"], situation["world_size"])


def mistaken_traffic(situation: dict) -> dict[str, float]:
    """What some mistakes would give, by their cause."""
    stage, steps, ranks = situation["stage"], situation["grad_accum"], situation["world_size"]
    whole = 2 * sum(situation["numels"])
    one_pass = whole * (ranks - 1) / ranks
    passes = {0: 2, 1: 3, 2: 2 * steps + 1, 3: 3 * steps}[stage]
    return {
        "whole tensors": passes * whole,
        "the paper's": {1: 2, 2: 2}.get(stage, passes) * one_pass,
        "one pass": {0: 1, 1: 2, 2: steps + 1, 3: 3 * steps}[stage] * one_pass,
        "once a step": {2: 3, 3: 3}.get(stage, passes) * one_pass,
        "every micro-step": {0: 2 * steps, 1: 2 * steps + 1}.get(stage, passes) * one_pass,
        "gathered once": {3: steps + 2}.get(stage, passes) * one_pass,
    }


def compare_traffic(situation: dict, got: Any, expected: int) -> Mark:
    """Right within the tolerance, or told by which factor, and by which mistake."""
    mark = compare_bytes(
        situation,
        got,
        expected,
        rel=TRAFFIC_TOLERANCE,
        too_few="which collectives run in every micro-step, and how often is each weight gathered?",
        too_many="which collectives run only once a step, and what share of a tensor passes through a rank?",
    )
    return with_cause(mark, got, mistaken_traffic(situation), rel=TRAFFIC_TOLERANCE)


EXERCISE = exercise_of_situations(
    id="lab04.step_traffic",
    points=2,
    minutes=15,
    difficulty="medium",
    draw=draw_steps,
    call=lambda fn, situation: fn(
        sum(situation["numels"]), situation["stage"], situation["world_size"], situation["grad_accum"]
    ),
    truth=counted_traffic,
    compare=compare_traffic,
    hints={
        "whole tensors": "A ring over N ranks passes on (N - 1) / N of a tensor in a reduce-scatter or an all-gather.",
        "one pass": "An all-reduce is a reduce-scatter and an all-gather: two passes round the ring.",
        "once a step": "Stages 2 and 3 exchange gradients in every micro-step.",
        "every micro-step": "Stages 0 and 1 exchange gradients once a step, whatever the number of micro-steps.",
        "the paper's": "As measured, DeepSpeed all-reduces gradients at stages 1 and 2, and gathers weights besides.",
        "gathered once": "Stage 3 gathers weights in every micro-step: for forward, and again for backward.",
    },
    why="Each collective on a ring sends (N - 1)/N of its elements from every rank. "
    "So traffic is a count of collectives and of their elements.",
    forbidden=("labs_utils", "deepspeed"),
)
