"""`lab02.policy_bytes`: bytes that all layers keep under a policy, held against layers that really run."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any

import torch

from labs_utils.exercises.contract import Mark
from labs_utils.exercises.marking import compare_bytes, exercise_of_situations
from labs_utils.exercises.saved_bytes import kept_bytes
from labs_utils.run import ModelShape, Run
from labs_utils.training.step import build_model, checkpoint_layers

KEPT_POLICIES = ("none", "full", "keep-attention", "keep-matmul-attention")


# What is likely forgotten or added under each policy.
CAUSES = {
    "none": ("the whole layer is kept: Lab 01's saved_bytes", "is the input of a layer counted? It isn't kept"),
    "full": ("every layer keeps its input", "a layer keeps its input in bf16 and nothing else"),
    "keep-attention": (
        "input, attention's output, and the fp32 log-sum-exp of each head",
        "attention's output is kept, but q, k and v are computed again",
    ),
    "keep-matmul-attention": (
        "the results of seven matrix products are kept, besides the input, attention's output and log-sum-exp",
        "what elementwise operators make is computed again, and so are the norms' copies",
    ),
}
EVERY_K_CAUSES = (
    "layers 0, K, 2K, … keep their input, the others everything",
    "how many of the layers are checkpointed?",
)


def draw_model(rng) -> dict:
    """A model whose layers are small enough to run; grouped heads, and a head size that isn't hidden_size / heads.

    K divides the layers of one "every-K", not those of another, and has two digits in a third.
    """
    kv_heads = int(rng.integers(1, 4))
    heads = kv_heads * int(rng.integers(2, 4))
    divides, odd = rng.choice([(2, 4), (3, 6)]), rng.choice([(4, 5), (4, 7), (5, 7)])
    every = {f"every-{number}": int(layers) for number, layers in (divides, odd, (rng.integers(11, 13), 13))}
    model = {
        "hidden_size": 16 * heads * int(rng.integers(2, 4)),
        "intermediate_size": 8 * int(rng.integers(40, 80)),
        "num_hidden_layers": int(rng.integers(2, 5)),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": 8 * int(rng.choice([3, 5, 7])),
    }
    return {"model": model, "every": every, "tokens": int(rng.integers(48, 128))}


def policies_at(case: dict) -> dict[str, dict]:
    """Every policy, by its name, with a model and the case's tokens."""
    models = dict.fromkeys(KEPT_POLICIES, case["model"])
    models |= {policy: {**case["model"], "num_hidden_layers": layers} for policy, layers in case["every"].items()}
    return {policy: {"model": model, "policy": policy, "tokens": case["tokens"]} for policy, model in models.items()}


@lru_cache(maxsize=1)
def llama_of(model: ModelShape) -> torch.nn.Module:
    """transformers' bf16 Llama, without its head; the last one is kept for the next policy."""
    return build_model(Run(model=model, seq_len=128), torch.device("cpu")).model


@cache
def layers_keep(model: ModelShape, policy: str, tokens: int) -> int:
    """Bytes that all layers of transformers' bf16 Llama, called on one sequence, keep under a policy.

    The first layer's input is made on the way, as the embedding makes it, so it counts where it is kept.
    """
    run = Run(model=model, seq_len=tokens, checkpointing=policy)
    llama = llama_of(model)
    checkpoint_layers(run, llama.layers)
    given = torch.ones(1, tokens, run.model.hidden_size, dtype=torch.bfloat16, requires_grad=True)
    tables = llama.rotary_emb(given, torch.arange(tokens)[None])

    def layers(hidden: torch.Tensor) -> torch.Tensor:
        hidden = hidden * 1
        for layer in llama.layers:
            hidden = layer(hidden, position_embeddings=tables)
        return hidden

    return kept_bytes(layers, [given], [*llama.parameters(), *tables])


def compare_policy(situation: dict, got: Any, expected: int) -> Mark:
    """`compare_bytes`, with what is likely forgotten or added under this policy."""
    too_few, too_many = CAUSES.get(situation["policy"], EVERY_K_CAUSES)
    return compare_bytes(situation, got, expected, too_few=too_few, too_many=too_many)


EXERCISE = exercise_of_situations(
    id="lab02.policy_bytes",
    points=2,
    minutes=15,
    difficulty="medium",
    draw=draw_model,
    situations=policies_at,
    call=lambda fn, situation: fn(situation["model"], situation["policy"], situation["tokens"]),
    truth=lambda situation: layers_keep(
        ModelShape(**situation["model"], vocab_size=8), situation["policy"], situation["tokens"]
    ),
    compare=compare_policy,
    hints={
        "too few": (
            "Write what one layer keeps under each policy, then multiply. Every policy but none keeps the layer's "
            "input; attention's kernel returns its output and one fp32 number a head."
        ),
        "too many": (
            "A policy keeps what it names, in bf16, once: q and o make heads * head_dim and hidden_size numbers, "
            "k and v kv_heads * head_dim, gate and up intermediate_size, down hidden_size."
        ),
        "units": "Bytes are asked, not MiB.",
    },
    why="What a policy keeps is the sum of what it keeps of each layer. "
    "Recomputing changes what is kept, never what is computed.",
    forbidden=("transformers", "saved_tensors_hooks", "labs_utils", "estimate", "dry_run"),
)
