"""`lab01.state_bytes`: bytes of weights, gradients and Adam's states, held against an Adam step that is really made."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import Parameter

from labs_utils.exercises.contract import Mark
from labs_utils.exercises.marking import close, compare_bytes, exercise_of_situations, mean_mark, with_cause

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
RECIPE_KEYS = ("weights", "gradients", "gradient_copy", "master", "moments")
RECIPES = {
    "pure bf16": ("bf16", "bf16", None, None, "bf16"),
    "bf16 with fp32 moments": ("bf16", "bf16", None, None, "fp32"),  # the Ultra-Scale Playbook's bars
    "fp32": ("fp32", "fp32", None, None, "fp32"),
    "bf16 with a master copy": ("bf16", "bf16", None, "fp32", "fp32"),  # ZeRO, arXiv 1910.02054, section 3.1
    "bf16 weights, all else fp32": ("bf16", "fp32", None, "fp32", "fp32"),
    "bf16, gradients added up in fp32": ("bf16", "bf16", "fp32", "fp32", "fp32"),
}
STATE_CAUSES = {
    "parameters": "is it the weights' type?",
    "gradients": "is there a second set, gradient_copy?",
    "optimizer_states": "are there two moments of the moments' type, and the master copy?",
}


def trained_state_bytes(parameters: int, recipe: dict) -> dict[str, int]:
    """The bytes of each kind of tensor after one Adam step really made, the step counter left out."""
    types = {key: DTYPES.get(name) for key, name in recipe.items()}
    weights = Parameter(torch.ones(parameters, dtype=types["weights"]))
    weights.square().sum().backward()
    gradients = [weights.grad.to(types[key]) for key in ("gradients", "gradient_copy") if types[key]]
    # What Adam updates: the master copy, or else the weights, widened for the step where the moments are wider.
    updated = Parameter(weights.detach().to(types["master"] or types["moments"]))
    updated.grad = gradients[-1].to(updated.dtype)
    adam = torch.optim.Adam([updated])
    adam.step()
    moments = [state for state in adam.state[updated].values() if state.dim()]
    optimizer_states = moments + [updated] * bool(types["master"])
    kinds = {"parameters": [weights], "gradients": gradients, "optimizer_states": optimizer_states}
    return {kind: sum(each.untyped_storage().nbytes() for each in tensors) for kind, tensors in kinds.items()}


def recipes_at(case: dict) -> dict[str, dict]:
    """Every recipe, by its name, at the case's number of parameters."""
    return {
        name: {"parameters": case["parameters"], "recipe": dict(zip(RECIPE_KEYS, types, strict=True))}
        for name, types in RECIPES.items()
    }


def mistakes_at(situation: dict, expected: dict) -> dict[str, dict]:
    """What some mistakes would give, by their cause."""
    parameters, recipe = situation["parameters"], situation["recipe"]
    size = {key: parameters * (DTYPES[name].itemsize if name else 0) for key, name in recipe.items()}
    states = expected["optimizer_states"]
    return {
        "no master": {**expected, "optimizer_states": states - size["master"]},
        "one moment": {**expected, "optimizer_states": states - size["moments"]},
        "weights' type": {**expected, "optimizer_states": 2 * size["weights"] + size["master"]},
        "one set": {**expected, "gradients": expected["gradients"] - size["gradient_copy"]},
        "one recipe": {
            "parameters": 2 * parameters,
            "gradients": 2 * parameters,
            "optimizer_states": 12 * parameters,
        },
    }


def compare_state(situation: dict, got: Any, expected: dict) -> Mark:
    """A recipe is right as a whole: most kinds are right in most mistakes."""
    if type(got) is not dict or got.keys() != expected.keys():
        return close(situation, got, expected)
    too_many = "is it the recipe's type, and not a None?"
    marks = {
        kind: compare_bytes(situation, got[kind], nbytes, too_few=STATE_CAUSES[kind], too_many=too_many)
        for kind, nbytes in expected.items()
    }
    mean = mean_mark(marks)
    return with_cause(mean._replace(score=float(mean.score == 1)), got, mistakes_at(situation, expected))


EXERCISE = exercise_of_situations(
    id="lab01.state_bytes",
    points=2,
    minutes=10,
    difficulty="easy",
    draw=lambda rng: {"parameters": int(rng.integers(1_000, 20_000))},
    situations=recipes_at,
    call=lambda fn, situation: fn(situation["parameters"], situation["recipe"]),
    truth=lambda situation: trained_state_bytes(**situation),
    compare=compare_state,
    hints={
        "units": "Bytes are asked, not GB: a bf16 number takes 2, an fp32 number 4.",
        "no master": "A master copy is a state too, of the type that the recipe names; None takes nothing.",
        "one moment": "Adam keeps two numbers for each parameter: a mean of gradients, and a mean of their squares.",
        "weights' type": "The moments have a type of their own in the recipe.",
        "one set": "gradient_copy is a second set of gradients, beside the first.",
        "one recipe": "16 bytes per parameter belong to one recipe: look up each type in `recipe`.",
        "too few": "Is each kind of tensor in the sum, with the bytes of its own type?",
        "too many": "A None in the recipe means that there is no such tensor.",
    },
    why="Every byte is a number of some type, so a recipe is a list of types. Name the types and the sum follows.",
)
