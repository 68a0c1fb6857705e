"""`lab01.saved_bytes`: bytes that a decoder layer keeps for backward, held against a layer that really runs."""

from __future__ import annotations

from functools import partial

from labs_utils.exercises.contract import Exercise
from labs_utils.exercises.marking import compare_bytes
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


EXERCISE = Exercise(
    id="lab01.saved_bytes",
    points=2,
    minutes=25,
    difficulty="hard",
    draw=draw_layer,
    call=lambda fn, case: fn(case["model"], case["tokens"]),
    truth=lambda case: layer_saved_bytes(**case),
    compare=partial(
        compare_bytes,
        too_few="RMSNorm computes in fp32 and saves that copy too, and SwiGLU saves four tensors, not one or two",
        too_many="a storage counts once however many operators save it, keys and values have fewer heads than "
        "queries, and flash attention saves no scores",
    ),
    hints=(
        "Go through the layer operator by operator; what does backward need of each? Adding saves nothing.",
        "Norm (twice): fp32 copy, 1/rms (4 bytes a token), normalised, output. SwiGLU: gate, silu, up, their product.",
        "Attention: q, k, v and output in bf16, and the log-sum-exp of each head, 4 bytes a token.",
    ),
    why="A layer's memory is a sum over its operators, each of which keeps a known tensor for its own gradient. "
    "That is why it is linear in the tokens.",
    forbidden=("transformers", "saved_tensors_hooks", "labs_utils"),
)
