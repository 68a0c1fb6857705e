"""Lab 04, ZeRO stages: held against torch's AdamW and against what DeepSpeed itself holds and sends on a rank."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import accumulate
from typing import Any

import torch

from labs_utils.exercises.comparing import close
from labs_utils.exercises.contract import Exercise
from labs_utils.exercises.kept import compare_bytes, compare_each, in_each
from labs_utils.exercises.lone_rank import KINDS, lone_rank, ring_bytes
from labs_utils.exercises.plain import plain
from labs_utils.exercises.ranks import on_ranks

STAGES = (0, 1, 2, 3)
UPDATE_TOLERANCE = 1e-3  # of the way that the weights went; rounding in fp32 is 1e-6 of it, weight decay 1e-2
PERIOD = 1009  # a prime, so that no two parts are alike
COUNTER_BYTES = 64  # a state's step counters, whatever they are kept in
TRAFFIC_TOLERANCE = 0.002  # flags and norms that are reduced as well, a few bytes in a hundred thousand
WAIT_SECONDS = 8.0  # for a rank that never comes
MARGIN = 0.05  # between a card and what a stage needs: more than a gradient that reaches over a boundary
ADAM = {"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}


def draw_trainings(rng) -> dict:
    """Weights that ranks share evenly or not, gradients as small as eps, one rank; groups in turn, and too many.

    Adam forgives a gradient that is N times too long, except where it is as small as eps.
    """
    ranks = int(rng.integers(3, 5))
    trainings = {
        "divides evenly": {"world_size": ranks, "numel": ranks * int(rng.integers(5, 20))},
        "doesn't divide": {
            "world_size": ranks,
            "numel": ranks * int(rng.integers(5, 20)) + int(rng.integers(1, ranks)),
        },
        "tiny gradients": {"world_size": 2, "numel": int(rng.integers(20, 50)), "gradient_scale": 1e-8},
        "one rank": {"world_size": 1, "numel": int(rng.integers(20, 50))},
        "two groups in turn": {"world_size": 2, "numel": int(rng.integers(20, 50)), "groups": 2},
        "many groups of parameters": {
            "world_size": 4,
            "numel": 2**20 - int(rng.integers(1, 8)),
            "groups": 12,
            "steps": 1,
        },
    }
    defaults = {"gradient_scale": 1.0, "groups": 1, "steps": 4, "lr": 0.01}
    return {name: {"seed": int(rng.integers(2**31)), **defaults, **part} for name, part in trainings.items()}


def numbers(seed: int, numel: int) -> torch.Tensor:
    """Normal numbers; they come again after `PERIOD`, which takes less time than drawing a million."""
    drawn = torch.randn(PERIOD, generator=torch.Generator().manual_seed(seed))
    return drawn.repeat(-(-numel // PERIOD))[:numel]


def starting_weights(part: dict) -> torch.Tensor:
    return numbers(part["seed"], part["numel"])


def gradient_of(part: dict, step: int, rank: int) -> torch.Tensor:
    """The gradient of a rank's batch, in the same direction on all ranks and with noise of its own."""
    seed = part["seed"] + 1000 * step + 1
    return part["gradient_scale"] * (numbers(seed, part["numel"]) + numbers(seed + 1 + rank, part["numel"]))


def trained(function: Callable, part: dict) -> dict:
    """The weights of every rank after the steps, shape (ranks, numel), and the most that a group's state takes."""

    start = starting_weights(part)

    def rank(group) -> tuple[torch.Tensor, int]:
        states: list[dict] = [{} for _ in range(part["groups"])]
        gradients = [gradient_of(part, step, group.rank()) for step in range(part["steps"])]
        waiting = {}
        for step, gradient in enumerate(gradients, start=1):
            for place in range(part["groups"]):
                weights = waiting.pop(place, None) if step > 1 else start.clone()
                function(group, weights, gradient.clone(), states[place], part["lr"])
                states[place] = plain(states[place])  # numbers and tensors, and no view of anything larger
                if step < part["steps"]:
                    waiting[place] = weights
        return weights, max(state_bytes(state) for state in states)

    weights, sizes = zip(*on_ranks(part["world_size"], rank, WAIT_SECONDS), strict=True)
    return {"weights": torch.stack(weights), "state_bytes": max(sizes)}


def state_bytes(value: Any) -> int:
    """Bytes of a state, however nested it is."""
    if isinstance(value, (dict, list, tuple)):
        return sum(map(state_bytes, value.values() if isinstance(value, dict) else value))
    return getattr(value, "nbytes", 8)


def trained_by_torch(part: dict) -> dict:
    """`torch.optim.AdamW` on gradients averaged over the ranks; and what one rank's moments take."""
    weights = torch.nn.Parameter(starting_weights(part))
    optimizer = torch.optim.AdamW([weights], lr=part["lr"], **ADAM)
    for step in range(part["steps"]):
        gradients = [gradient_of(part, step, rank) for rank in range(part["world_size"])]
        weights.grad = sum(gradients) / len(gradients)
        optimizer.step()
    share = -(-part["numel"] // part["world_size"])
    return {"weights": weights.detach(), "start": starting_weights(part), "state_bytes": 8 * share}


def compare_training(got: Any, expected: dict) -> tuple[float, str]:
    """Two thirds for the weights of all ranks, a third for a state that is only this rank's."""
    if type(got) is not dict or got.keys() != {"weights", "state_bytes"} or type(got["state_bytes"]) is not int:
        return 0.0, "expected weights and a state of tensors and numbers"
    fault = weights_fault(got["weights"], expected)
    if fault:
        return 0.0, fault
    if got["state_bytes"] > expected["state_bytes"] + COUNTER_BYTES:
        factor = got["state_bytes"] / expected["state_bytes"]
        return 2 / 3, f"the weights are right, but a rank's state takes {factor:.3g} times as much as its own moments"
    return 1.0, "as expected"


def weights_fault(weights: Any, expected: dict) -> str | None:
    truth = expected["weights"]
    if not isinstance(weights, torch.Tensor) or weights.shape[1:] != truth.shape or weights.dtype != truth.dtype:
        return "the weights must keep their shape and type"
    way = (truth - expected["start"]).norm()
    apart = max((other - weights[0]).norm() for other in weights)
    if not apart <= UPDATE_TOLERANCE * way:
        return "the ranks end with different weights: what does each know of the others' parts?"
    off = (weights[0] - truth).norm() / way
    if off <= UPDATE_TOLERANCE:
        return None
    moved = ((weights[0] - expected["start"]).abs() > 0).float().mean()
    if moved < 0.99:
        return f"only {moved:.0%} of the weights have moved"
    return (
        f"the weights are off by {off:.2g} of the way that they should go: which gradient, which moments, which step?"
    )


zero1_step = Exercise(
    id="lab04.zero1_step",
    points=4,
    draw=draw_trainings,
    call=in_each(trained),
    truth=in_each(trained_by_torch),
    compare=partial(compare_each, compare_training),
    hints=(
        "Pad a copy of the gradient with zeros so that it divides into group.size() parts of the same length.",
        "dist.reduce_scatter adds up. Adam hardly notices a factor, but where gradients are small it does.",
        "Keep two tensors as long as a part, and a count of steps. Then gather all parts, and drop the padding.",
    ),
    forbidden=("labs_utils", "deepspeed", "ZeroRedundancyOptimizer", "torch.optim"),
)


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
