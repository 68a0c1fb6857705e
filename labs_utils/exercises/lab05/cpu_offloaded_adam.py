"""`lab05.cpu_offloaded_adam`: Adam on the host, held against torch's AdamW in two memories that count what crosses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from labs_utils.exercises.contract import Mark
from labs_utils.exercises.lab05.two_memories import TwoMemories
from labs_utils.exercises.marking import AS_EXPECTED, exercise_of_situations
from labs_utils.exercises.plain import plain

DEVICE_SPARE = 2.5  # times the largest tensor: room for its new weights, and not for its moments
TRAFFIC_TOLERANCE = 1.02
EARLY_STEPS = 4
NEARLY = 0.2


def draw_trainings(rng) -> dict:
    """Steps that bf16 shows, steps too small for it, a gradient as small as eps, and one that is large at first.

    The last tells what second moments remember: the large gradients stay in them as long as beta2 says, and less is
    forgotten and added in bf16. It takes many steps, in which single roundings of weights even out: the weights must
    come closer.
    """

    def shapes() -> list[list[int]]:
        return [[int(n) for n in rng.integers(20, 60, size=2)], [int(rng.integers(200, 900))], [7, 5, 3]]

    trainings = {
        "usual steps": {"steps": 12, "lr": 0.05},
        "small steps": {"steps": 20, "lr": 0.001, "tolerance": 0.1},  # one weight rounded otherwise can make 0.05
        "tiny gradients": {"steps": 4, "lr": 0.05, "early": 3e-8, "late": 3e-8},
        "large gradients at first": {"steps": 150, "lr": 0.02, "early": 30.0, "tolerance": 0.006},
    }
    usual = {"early": 1.0, "late": 1.0, "tolerance": 0.03}
    return {
        name: {"seed": int(rng.integers(2**31)), "shapes": shapes(), **usual, **training}
        for name, training in trainings.items()
    }


def starting_weights(situation: dict) -> list[torch.Tensor]:
    """Normal numbers in bf16, in the situation's shapes."""
    generator = torch.Generator().manual_seed(situation["seed"])
    return [torch.randn(shape, generator=generator).bfloat16() for shape in situation["shapes"]]


def gradients_of(situation: dict, step: int) -> list[torch.Tensor]:
    """In one direction over the steps, with noise; of size `early` in the first few and `late` after them."""
    generator = torch.Generator().manual_seed(situation["seed"] + 1)
    drawn = [torch.randn(shape, generator=generator) for shape in situation["shapes"]]
    generator.manual_seed(situation["seed"] + 2 + step)
    size = situation["early" if step < EARLY_STEPS else "late"]
    return [(size * (each + torch.randn(each.shape, generator=generator))).bfloat16() for each in drawn]


def trained(function: Callable, situation: dict) -> dict:
    """The weights after the steps, in a row, and the bytes moved each way in a step.

    Each step is given a list of its own, so that a weight counts where it was and not where the list points.
    """
    weights, state = starting_weights(situation), {}
    nbytes = [weight.nbytes for weight in weights]
    memories = TwoMemories(int(2 * sum(nbytes) + DEVICE_SPARE * max(nbytes)))
    for weight in weights:
        memories.put_on_device(weight)
    for step in range(situation["steps"]):
        if step == 1:  # what the first one sends to begin with doesn't count
            memories.moved.update(down=0, up=0)
        gradients = [memories.put_on_device(gradient) for gradient in gradients_of(situation, step)]
        with memories:
            function(memories, list(weights), gradients, state, situation["lr"])
        del gradients
    moved = {way: count / (situation["steps"] - 1) for way, count in memories.moved.items()}
    return {"weights": plain(torch.cat([weight.flatten().float() for weight in weights])), **moved}


def trained_by_torch(situation: dict) -> dict:
    """`torch.optim.AdamW` on fp32 copies of the weights, and the bytes of one bf16 copy of them."""
    start = starting_weights(situation)
    masters = [torch.nn.Parameter(weight.float()) for weight in start]
    optimizer = torch.optim.AdamW(masters, lr=situation["lr"])
    for step in range(situation["steps"]):
        for master, gradient in zip(masters, gradients_of(situation, step), strict=True):
            master.grad = gradient.float()
        optimizer.step()
    ends = [master.detach().bfloat16().flatten().float() for master in masters]
    starts = torch.cat([weight.flatten().float() for weight in start])
    nbytes = sum(weight.nbytes for weight in start)
    return {"weights": torch.cat(ends), "start": starts, "bytes": nbytes}


def compare_training(situation: dict, got: Any, expected: dict) -> Mark:
    """Two thirds for the weights, a third for moving no more than gradients down and weights up in 16 bits."""
    if type(got) is not dict or got.keys() != {"weights", "down", "up"}:
        return Mark(0.0, "expected weights and bytes moved")
    way = expected["weights"] - expected["start"]
    off = (got["weights"] - expected["weights"]).norm() / way.norm()
    if not off <= situation["tolerance"]:
        return Mark(0.0, *weights_fault(got["weights"] - expected["start"], way, off))
    moved, least = {"down": got["down"], "up": got["up"]}, expected["bytes"]
    if min(moved.values()) < 0.98 * least:
        return Mark(0.0, "the weights are right, but they have crossed otherwise than through `memories`", "around")
    for direction, nbytes in moved.items():
        if nbytes > TRAFFIC_TOLERANCE * least:
            cause = f"much {direction}"
            times = f"{nbytes / least:.3g} times the bytes of the weights go {direction} in a step"
            return Mark(2 / 3, f"the weights are right, but {times}: what has to cross, and in which type?", cause)
    return AS_EXPECTED


def weights_fault(moved: torch.Tensor, way: torch.Tensor, off: float) -> tuple[str, str]:
    """What is wrong with weights that moved by `moved` and should have by `way`, and its cause.

    `off` is the error, a share of the way.
    """
    if not moved.abs().sum():
        return (
            "the weights have not moved: are they changed in place (`weights[i] = …` changes only the list), "
            "and do steps smaller than bf16 get lost?",
            "not moved",
        )
    share = moved.norm() / way.norm()
    fault = f"the weights go {share:.3g} times as far as they should and end {off:.2g} of the way off"
    nearly = ": nearly right, so look at betas and weight decay, and at the moments' type"
    return (fault + nearly, "nearly") if off < NEARLY else (fault, "far off")


EXERCISE = exercise_of_situations(
    id="lab05.cpu_offloaded_adam",
    points=4,
    minutes=30,
    difficulty="hard",
    draw=draw_trainings,
    call=trained,
    truth=trained_by_torch,
    compare=compare_training,
    hints={
        "not moved": (
            "Copy the new values into the weights on the device, weights[i].copy_(...): `weights[i] = ...` "
            "changes only the list. Small steps need fp32 master weights on the host."
        ),
        "nearly": "Betas 0.9 and 0.999, weight decay 0.01, and moments in fp32.",
        "far off": (
            "In the first step make the master weights, a copy of the weights on the host in fp32, and keep them "
            "in `state`; count the steps for Adam's correction."
        ),
        "around": "Only memories.to_host and memories.to_device cross.",
        "much down": "Send the gradient down as it is, in bf16, and widen it on the host; states stay there.",
        "much up": "Round the new master weights to bf16 on the host, and send those up; nothing else.",
    },
    why="The update needs gradients, masters and moments, and no activation. "
    "So it can run where memory is cheap, as long as weights come back in time.",
    self_reported="the bytes moved",
    forbidden=("labs_utils", "deepspeed", "torch.optim"),
)
