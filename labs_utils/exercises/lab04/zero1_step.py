"""`lab04.zero1_step`: Adam on partitioned states, held against torch's AdamW on ranks that really communicate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from labs_utils.exercises.contract import Mark
from labs_utils.exercises.marking import AS_EXPECTED, exercise_of_situations
from labs_utils.exercises.plain import plain
from labs_utils.workers.threads import on_ranks

UPDATE_TOLERANCE = 1e-3  # of the way that the weights went; rounding in fp32 is 1e-6 of it, weight decay 1e-2
PERIOD = 1009  # a prime, so that no two parts are alike
COUNTER_BYTES = 64  # a state's step counters, whatever they are kept in
WAIT_SECONDS = 8.0  # for a rank that never comes


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
    defaults = {"gradient_scale": 1.0, "groups": 1, "steps": 4}
    rates = rng.permutation([0.001, 0.003, 0.01, 0.02, 0.03, 0.05])
    return {
        name: {"seed": int(rng.integers(2**31)), "lr": float(lr), **defaults, **training}
        for (name, training), lr in zip(trainings.items(), rates, strict=True)
    }


def numbers(seed: int, numel: int) -> torch.Tensor:
    """Normal numbers; they come again after `PERIOD`, which takes less time than drawing a million."""
    drawn = torch.randn(PERIOD, generator=torch.Generator().manual_seed(seed))
    return drawn.repeat(-(-numel // PERIOD))[:numel]


def starting_weights(situation: dict) -> torch.Tensor:
    """Weights of shape (numel,), the same on all ranks."""
    return numbers(situation["seed"], situation["numel"])


def gradient_of(situation: dict, step: int, rank: int) -> torch.Tensor:
    """The gradient of a rank's batch, in the same direction on all ranks and with noise of its own."""
    seed, numel = situation["seed"] + 1000 * step + 1, situation["numel"]
    return situation["gradient_scale"] * (numbers(seed, numel) + numbers(seed + 1 + rank, numel))


def trained(function: Callable, situation: dict) -> dict:
    """The weights of every rank after the steps, shape (ranks, numel), and the most that a group's state takes."""

    start = starting_weights(situation)

    def rank(group) -> tuple[torch.Tensor, int]:
        states: list[dict] = [{} for _ in range(situation["groups"])]
        gradients = [gradient_of(situation, step, group.rank()) for step in range(situation["steps"])]
        waiting = {}
        for step, gradient in enumerate(gradients, start=1):
            for place in range(situation["groups"]):
                weights = waiting.pop(place, None) if step > 1 else start.clone()
                function(group, weights, gradient.clone(), states[place], situation["lr"])
                states[place] = plain(states[place])  # numbers and tensors, and no view of anything larger
                if step < situation["steps"]:
                    waiting[place] = weights
        return weights, max(state_bytes(state) for state in states)

    weights, sizes = zip(*on_ranks(situation["world_size"], rank, WAIT_SECONDS), strict=True)
    return {"weights": torch.stack(weights), "state_bytes": max(sizes)}


def state_bytes(value: Any) -> int:
    """Bytes of a state, however nested it is."""
    if isinstance(value, (dict, list, tuple)):
        return sum(map(state_bytes, value.values() if isinstance(value, dict) else value))
    return getattr(value, "nbytes", 8)


def trained_by_torch(situation: dict) -> dict:
    """`torch.optim.AdamW` on gradients averaged over the ranks; and what one rank's moments take."""
    weights = torch.nn.Parameter(starting_weights(situation))
    optimizer = torch.optim.AdamW([weights], lr=situation["lr"])
    for step in range(situation["steps"]):
        gradients = [gradient_of(situation, step, rank) for rank in range(situation["world_size"])]
        weights.grad = sum(gradients) / len(gradients)
        optimizer.step()
    share = -(-situation["numel"] // situation["world_size"])
    return {"weights": weights.detach(), "start": starting_weights(situation), "state_bytes": 8 * share}


def compare_training(situation: dict, got: Any, expected: dict) -> Mark:
    """Two thirds for the weights of all ranks, a third for a state that is only this rank's."""
    if type(got) is not dict or got.keys() != {"weights", "state_bytes"} or type(got["state_bytes"]) is not int:
        return Mark(0.0, "expected weights and a state of tensors and numbers")
    fault = weights_fault(got["weights"], expected)
    if fault:
        return Mark(0.0, *fault)
    if got["state_bytes"] > expected["state_bytes"] + COUNTER_BYTES:
        times = f"{got['state_bytes'] / expected['state_bytes']:.3g} times as much as its own moments"
        return Mark(2 / 3, f"the weights are right, but a rank's state takes {times}", "state")
    return AS_EXPECTED


def weights_fault(weights: Any, expected: dict) -> tuple[str, str] | None:
    """What is wrong with the ranks' weights, in a sentence, and its cause; None where nothing is."""
    truth = expected["weights"]
    if not isinstance(weights, torch.Tensor) or weights.shape[1:] != truth.shape or weights.dtype != truth.dtype:
        return "the weights must keep their shape and type", "shape"
    way = (truth - expected["start"]).norm()
    apart = max((other - weights[0]).norm() for other in weights)
    if not apart <= UPDATE_TOLERANCE * way:
        return "the ranks end with different weights: what does each know of the others' parts?", "different"
    off = (weights[0] - truth).norm() / way
    if off <= UPDATE_TOLERANCE:
        return None
    moved = ((weights[0] - expected["start"]).abs() > 0).float().mean()
    if moved < 0.99:
        return f"only {moved:.0%} of the weights have moved", "not moved"
    way_off = f"the weights are off by {off:.2g} of the way that they should go"
    return f"{way_off}: which gradient, which moments, which step?", "off"


EXERCISE = exercise_of_situations(
    id="lab04.zero1_step",
    cases=1,
    points=4,
    minutes=30,
    difficulty="hard",
    draw=draw_trainings,
    call=trained,
    truth=trained_by_torch,
    compare=compare_training,
    hints={
        "shape": "Change the weights in place, weights[:] = ..., and drop the padding first.",
        "different": "In the end gather all parts with dist.all_gather, so that every rank has all new weights.",
        "not moved": (
            "Pad a copy of the gradient with zeros so that it divides into group.size() parts of the same length: "
            "no weight may be left out."
        ),
        "off": (
            "dist.reduce_scatter adds up: divide by group.size(). Adam hardly notices a factor, but where "
            "gradients are small it does. Keep moments and a count of steps in `state`."
        ),
        "state": "A rank's state is two tensors as long as its own part, and a count.",
    },
    why="Adam updates each number on its own, so ranks can share the work without a change in the result. "
    "All they must exchange are summed gradients and new weights.",
    self_reported="the bytes of a rank's state",
    forbidden=("labs_utils", "deepspeed", "ZeroRedundancyOptimizer", "torch.optim"),
)
