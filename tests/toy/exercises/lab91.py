"""A toy exercise in torch, whose worker imports torch before the cap is set."""

from functools import partial

import torch

from labs_utils.exercises.contract import Exercise
from labs_utils.exercises.marking import close

# Scores of all pairs take 256 MiB in float32; one block of 64 rows takes 2 MiB.
TOKENS = 8192


def draw(rng):
    return {"queries": torch.from_numpy(rng.standard_normal((TOKENS, 4))).float()}


def truth(case):
    queries = case["queries"]
    return torch.nn.functional.scaled_dot_product_attention(*[queries[None, None]] * 3, scale=1.0)[0, 0]


attention = Exercise(
    id="lab91.attention",
    points=3,
    draw=draw,
    call=lambda fn, case: fn(case["queries"]),
    truth=truth,
    compare=partial(close, rel=1e-3, abs=1e-4),
)

EXERCISES = (attention,)
