"""`lab04.step_traffic`: bytes that a rank sends in a step, held against DeepSpeed's own collectives."""

from __future__ import annotations

from functools import partial

from labs_utils.exercises.lab04.stages import STAGES
from labs_utils.exercises.marking import compare_bytes, exercise_of_situations
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
    compare=partial(
        compare_bytes,
        rel=TRAFFIC_TOLERANCE,
        too_few="which collectives run in every micro-step, and how often is each weight gathered?",
        too_many="which collectives run only once a step, and what share of a tensor passes through a rank?",
    ),
    hints=(
        "A ring over N ranks: (N - 1) / N of the whole tensor for a reduce-scatter or an all-gather, twice for both.",
        "Stages 0 and 1 reduce gradients once a step; stages 2 and 3 in every micro-step.",
        "Stages 1 and 2 gather weights once, after the update; stage 3 for each forward and again for each backward.",
    ),
    why="Each collective on a ring sends (N - 1)/N of its elements from every rank. "
    "So traffic is a count of collectives and of their elements.",
    forbidden=("labs_utils", "deepspeed"),
)
