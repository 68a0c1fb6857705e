"""Lab 04, ZeRO stages: held against what DeepSpeed itself holds and sends on a rank; and `partitioned_adam`."""

from __future__ import annotations

from functools import partial
from itertools import accumulate
from typing import Any

from labs_utils.exercises.comparing import close
from labs_utils.exercises.contract import Exercise
from labs_utils.exercises.kept import compare_bytes, compare_each, in_each
from labs_utils.exercises.partitioned_adam import zero1_step
from labs_utils.workers.silent_peers import KINDS, lone_rank, ring_bytes

STAGES = (0, 1, 2, 3)
TRAFFIC_TOLERANCE = 0.002  # flags and norms that are reduced as well, a few bytes in a hundred thousand
MARGIN = 0.05  # between a card and what a stage needs: more than a gradient that reaches over a boundary


def draw_models(rng) -> dict:
    """A model of parameters that don't divide, and a number of ranks: one situation for each stage."""
    ranks, numels = int(rng.integers(3, 10)), []
    while -(-sum(numels) // ranks) % 2 == 0:  # an odd share is one that DeepSpeed rounds up
        numels = [int(n) | 1 for n in rng.integers(20, 90, size=12)]
    return {f"stage {stage}": {"numels": numels, "stage": stage, "world_size": ranks} for stage in STAGES}


def measured_rank(part: dict) -> dict:
    """What DeepSpeed holds on rank 0, without the rest of a gradient that reaches into the next rank's part."""
    held = dict(lone_rank(part["numels"], part["stage"], part["world_size"])["held"])
    if part["stage"] == 2:
        share = held["master_weights"] // 4
        ends = accumulate(part["numels"])
        held["gradients"] -= 2 * (next(end for end in ends if end >= share) - share)
    return held


def compare_held(got: Any, truth: dict) -> tuple[float, str]:
    """A quarter for each kind."""
    score, sentence = close(None, got, truth)
    kind = sentence.partition(":")[0]
    return score, f"{sentence}: {held_question(got[kind], truth[kind])}" if kind in KINDS else sentence


def held_question(got: Any, truth: int) -> str:
    """The question that a wrong byte count leads to."""
    if type(got) in (int, float) and abs(got - truth) < 0.1 * truth:
        return "nearly; what is padded, all parameters in a row or each by itself, and to a multiple of what?"
    return "is this kind whole or a part at this stage, and how many bytes does an element take?"


rank_bytes = Exercise(
    id="lab04.rank_bytes",
    points=3,
    draw=draw_models,
    call=in_each(lambda fn, part: fn(part["numels"], part["stage"], part["world_size"])),
    truth=in_each(measured_rank),
    compare=partial(compare_each, compare_held),
    hints=(
        "Stage 1 cuts master weights and moments, stage 2 gradients too, stage 3 everything.",
        "At stages 1 and 2, cut sum(numels), rounded up to a multiple of 2 * world_size.",
        "At stage 3, cut each parameter by itself, rounded up to a multiple of world_size, and add the parts up.",
    ),
    forbidden=("labs_utils", "deepspeed"),
)


def draw_steps(rng) -> dict:
    """A model whose parameters divide evenly, ranks and micro-steps: one situation for each stage."""
    ranks = int(rng.integers(3, 10))
    numels = [2 * ranks * int(n) for n in rng.integers(1000, 3000, size=6)]
    settings = {"numels": numels, "world_size": ranks, "grad_accum": int(rng.integers(2, 5))}
    return {f"stage {stage}": {**settings, "stage": stage} for stage in STAGES}


def counted_traffic(part: dict) -> int:
    """What DeepSpeed hands to collectives in a step, each of them a ring."""
    counted = lone_rank(part["numels"], part["stage"], part["world_size"], part["grad_accum"])
    return ring_bytes(counted["communicated"], part["world_size"])


step_traffic = Exercise(
    id="lab04.step_traffic",
    points=2,
    draw=draw_steps,
    call=in_each(lambda fn, part: fn(sum(part["numels"]), part["stage"], part["world_size"], part["grad_accum"])),
    truth=in_each(counted_traffic),
    compare=partial(
        compare_each,
        partial(
            compare_bytes,
            rel=TRAFFIC_TOLERANCE,
            too_few="which collectives run in every micro-step, and how often is each weight gathered?",
            too_many="which collectives run only once a step, and what share of a tensor passes through a rank?",
        ),
    ),
    hints=(
        "A ring over N ranks: (N - 1) / N of the whole tensor for a reduce-scatter or an all-gather, twice for both.",
        "Stages 0 and 1 reduce gradients once a step; stages 2 and 3 in every micro-step.",
        "Stages 1 and 2 gather weights once, after the update; stage 3 for each forward and again for each backward.",
    ),
    forbidden=("labs_utils", "deepspeed"),
)


def draw_cards(rng) -> dict:
    """For each stage a card that is just large enough, and one just too small; and one rank, where no stage helps."""
    ranks = int(rng.integers(3, 9))
    numels = [2 * ranks * int(n) for n in rng.integers(20, 60, size=32)]
    parameters, other = sum(numels), int(rng.integers(2, 12)) * sum(numels)
    settings = {"numels": numels, "world_size": ranks, "other_bytes": other}
    cards = {}
    for stage in STAGES:
        needed = bytes_at(stage, ranks) * parameters
        for name, factor in (("enough", 1 + MARGIN), ("too little", 1 - MARGIN)):
            cards[f"just {name} for stage {stage}"] = {**settings, "memory_bytes": int(factor * needed) + other}
    alone = {**settings, "world_size": 1, "memory_bytes": int(0.9 * bytes_at(0, 1) * parameters) + other}
    return {**cards, "a single rank": alone}


def bytes_at(stage: int, ranks: int) -> float:
    """Bytes per parameter by the ZeRO paper (arXiv 1910.02054, figure 1); only to draw limits between them."""
    return (16, 4 + 12 / ranks, 2 + 14 / ranks, 16 / ranks)[stage]


def lowest_that_fits(part: dict) -> dict:
    """The lowest stage at which what DeepSpeed holds leaves room for the rest, -1 for none; and all needs."""
    held = [sum(lone_rank(part["numels"], stage, part["world_size"])["held"].values()) for stage in STAGES]
    fitting = [stage for stage in STAGES if held[stage] + part["other_bytes"] <= part["memory_bytes"]]
    return {"lowest": min(fitting, default=-1), "needed": [n + part["other_bytes"] for n in held], **part}


def compare_stage(got: Any, expected: dict) -> tuple[float, str]:
    """Right or wrong, with what DeepSpeed would need at the stage that was answered."""
    lowest = expected["lowest"] if expected["lowest"] >= 0 else None
    if got == lowest and type(got) is type(lowest):
        return 1.0, "as expected"
    if type(got) is not int or got not in STAGES:
        return 0.0, f"expected {'None' if lowest is None else 'a stage that fits'}, got {got!r}"[:200]
    need, memory = expected["needed"][got], expected["memory_bytes"]
    if need > memory:
        return 0.0, f"at stage {got} DeepSpeed needs {need:,} bytes, and {memory:,} are there"
    return 0.0, f"stage {got} fits, but it isn't the lowest that does"


lowest_stage = Exercise(
    id="lab04.lowest_stage",
    points=3,
    draw=draw_cards,
    call=in_each(
        lambda fn, part: fn(sum(part["numels"]), part["world_size"], part["other_bytes"], part["memory_bytes"])
    ),
    truth=in_each(lowest_that_fits),
    compare=partial(compare_each, compare_stage),
    hints=(
        "Bytes per parameter: 16 at stage 0, 4 + 12/N at 1, 2 + 14/N at 2, 16/N at 3.",
        "What isn't partitioned is the same on every rank, whatever the stage.",
        "If not even stage 3 fits, say None.",
    ),
    forbidden=("labs_utils", "deepspeed"),
)

EXERCISES = (zero1_step, rank_bytes, step_traffic, lowest_stage)
