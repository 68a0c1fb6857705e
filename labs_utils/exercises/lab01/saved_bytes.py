"""`lab01.saved_bytes`: bytes that a decoder layer keeps for backward, held against a layer that really runs."""

from __future__ import annotations

from typing import Any

from labs_utils.exercises.contract import Exercise, Mark
from labs_utils.exercises.marking import compare_bytes, with_cause
from labs_utils.exercises.saved_bytes import layer_saved_bytes


def draw_layer(rng) -> dict:
    """A decoder layer small enough to run; grouped heads, and a head size that isn't hidden_size / heads."""
    kv_heads = int(rng.integers(1, 4))
    heads = kv_heads * int(rng.integers(2, 5))
    model = {
        "hidden_size": 16 * heads * int(rng.integers(2, 5)),
        "intermediate_size": 8 * int(rng.integers(50, 100)),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": 8 * int(rng.choice([3, 5, 7])),
    }
    return {"model": model, "tokens": int(rng.integers(64, 256))}


def compare_saved(case: dict, got: Any, expected: int) -> Mark:
    """Right to the byte, or told by which factor, and by which mistake."""
    mark = compare_bytes(
        case,
        got,
        expected,
        too_few="RMSNorm computes in fp32 and saves that copy too, and SwiGLU saves four tensors, not one or two",
        too_many="a storage counts once however many operators save it, keys and values have fewer heads than "
        "queries, and flash attention saves no scores",
    )
    return with_cause(mark, got, mistakes_at(case, expected))


def mistakes_at(case: dict, expected: int) -> dict[str, int]:
    """What some mistakes would give, by their cause."""
    model, tokens = case["model"], case["tokens"]
    heads, kv_heads = model["num_attention_heads"], model["num_key_value_heads"]
    return {
        "grouped heads": expected + tokens * 4 * (heads - kv_heads) * model["head_dim"],
        "fp32 copies": expected - tokens * 2 * 4 * model["hidden_size"],
        "one of the MLP": expected - tokens * 6 * model["intermediate_size"],
        "scores": expected + tokens * heads * (5 * tokens - 4),
        "another model": tokens * 34 * model["hidden_size"],
    }


EXERCISE = Exercise(
    id="lab01.saved_bytes",
    points=2,
    minutes=25,
    difficulty="hard",
    draw=draw_layer,
    call=lambda fn, case: fn(case["model"], case["tokens"]),
    truth=lambda case: layer_saved_bytes(**case),
    compare=compare_saved,
    hints={
        "units": "Bytes are asked, not MiB.",
        "grouped heads": "Keys and values have num_key_value_heads heads, queries and the output num_attention_heads.",
        "fp32 copies": "Each of the two norms keeps an fp32 copy of its input, too.",
        "one of the MLP": "SwiGLU keeps four tensors of intermediate_size: gate, silu(gate), up, and their product.",
        "scores": "Flash attention keeps no scores: of them one fp32 number for each head and token is left.",
        "another model": "34 bytes are for a GPT with GELU and dropout. Count this layer, operator by operator.",
        "too few": (
            "Norm (twice): fp32 copy, 1/rms, normalised, output. Attention: q, k, v, output, one fp32 number a head."
        ),
        "too many": (
            "The same memory is handed over several times: q, k and v share one input. Count each storage once."
        ),
    },
    why="A layer's memory is a sum over its operators, each of which keeps a known tensor for its own gradient. "
    "That is why it is linear in the tokens.",
    forbidden=("transformers", "saved_tensors_hooks", "labs_utils"),
)
