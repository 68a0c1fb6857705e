"""Lab 02, activation checkpointing: answers are held against gradients without it, and against tracked real steps."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch

from labs_utils.exercises import stretches
from labs_utils.exercises.comparing import close
from labs_utils.exercises.contract import Exercise
from labs_utils.exercises.kept import compare_bytes, compare_each, kept_bytes, mean_mark
from labs_utils.exercises.policies import POLICIES, cheapest, draw_limits
from labs_utils.exercises.recomputing import compare_checkpoint, draw_checkpoint, each_part, true_parts
from labs_utils.run import ModelShape, Run
from labs_utils.training.step import build_model

KEPT_POLICIES = ("none", "full", "keep-attention", "keep-matmul-attention")


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


def each_policy(function: Callable, case: dict) -> dict:
    """`function(model, policy, tokens)` for every policy, by its name."""
    models = dict.fromkeys(KEPT_POLICIES, case["model"])
    models |= {policy: {**case["model"], "num_hidden_layers": layers} for policy, layers in case["every"].items()}
    return {policy: function(model, policy, case["tokens"]) for policy, model in models.items()}


def true_bytes(model: dict, policy: str, tokens: int) -> int:
    """`layers_keep`, for a model's sizes as plain data."""
    return layers_keep(ModelShape(**model, vocab_size=8), policy, tokens)


@cache
def layers_keep(model: ModelShape, policy: str, tokens: int) -> int:
    """Bytes that all layers of transformers' bf16 Llama, called on one sequence, keep under a policy.

    The first layer's input is made on the way, as the embedding makes it, so it counts where it is kept.
    """
    run = Run(model=model, seq_len=tokens, checkpointing=policy)
    llama = build_model(run, torch.device("cpu")).model
    given = torch.ones(1, tokens, run.model.hidden_size, dtype=torch.bfloat16, requires_grad=True)
    tables = llama.rotary_emb(given, torch.arange(tokens)[None])

    def layers(hidden: torch.Tensor) -> torch.Tensor:
        hidden = hidden * 1
        for layer in llama.layers:
            hidden = layer(hidden, position_embeddings=tables)
        return hidden

    return kept_bytes(layers, [given], [*llama.parameters(), *tables])


def compare_policies(case: dict, answers: Any, truths: dict) -> tuple[float, str]:
    """Each policy's bytes, with what is likely forgotten or added under it."""
    causes = {
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
    every = ("layers 0, K, 2K, … keep their input, the others everything", "how many of the layers are checkpointed?")
    return mean_mark(
        {
            policy: compare_bytes(answers[policy], truth, 0, *causes.get(policy, every))
            for policy, truth in truths.items()
        }
    )


policy_bytes = Exercise(
    id="lab02.policy_bytes",
    points=2,
    draw=draw_model,
    call=each_policy,
    truth=partial(each_policy, true_bytes),
    compare=compare_policies,
    hints=(
        "Write what one layer keeps under each policy, then multiply. Every policy but none keeps the layer's input.",
        "Attention's kernel returns its output (heads * head_dim bf16 numbers a token) and one fp32 number a head.",
        "Products: q and o make heads * head_dim and hidden_size numbers, k and v kv_heads * head_dim, gate and up "
        "intermediate_size, down hidden_size. A policy keeps what it names, whether somebody will need it or not.",
    ),
    forbidden=("transformers", "saved_tensors_hooks", "labs_utils", "estimate", "dry_run"),
)


checkpoint = Exercise(
    id="lab02.checkpoint",
    points=4,
    draw=draw_checkpoint,
    call=each_part,
    truth=true_parts,
    compare=compare_checkpoint,
    hints=(
        "A torch.autograd.Function has two static methods: forward(ctx, fn, *inputs) and backward(ctx, gradient). "
        "Inside forward no graph is recorded; that is all the saving there is.",
        "Keep fn, torch.get_rng_state() and, with ctx.save_for_backward, the inputs. In backward: detach the inputs, "
        "let them require gradients as before, go back to the kept random state, and run fn under torch.enable_grad().",
        "torch.autograd.backward(output, gradient) fills .grad of the detached inputs and of the parameters. Put the "
        "random state back that was there before the recomputation. Return None for fn, then each input's .grad.",
    ),
    forbidden=("torch.utils.checkpoint", "torch_checkpoint", "save_on_cpu", "labs_utils"),
)


def each_limit(function: Callable, case: dict) -> dict:
    """`function(run, limit_bytes)` for every situation, by its name."""
    return {name: function(one["run"], one["limit_bytes"]) for name, one in case.items()}


def compare_policy(got: Any, truth: dict) -> tuple[float, str]:
    """Right or wrong, and whether it doesn't fit or isn't the cheapest."""
    best, limit, measured = truth["best"], truth["limit_bytes"], truth["measured"]
    if got == best and type(got) is type(best):
        return 1.0, "as expected"
    if got is None:
        return 0.0, f"expected {best!r}, got None: its peak of {measured[best]['peak_bytes']:,} bytes fits"
    if type(got) is not str or got not in measured:
        return 0.0, f"expected one of {', '.join(POLICIES)} or None, got {str(got)[:40]!r}"
    peak, flops = measured[got]["peak_bytes"], measured[got]["flops_again"]
    if peak > limit:
        return 0.0, f"{got!r} peaks at {peak:,} bytes, and the limit is {limit:,}"
    if flops == measured[best]["flops_again"]:
        return 0.0, f"{got!r} fits, but so does {best!r}, which computes no more again and comes earlier in the list"
    again = measured[best]["flops_again"]
    return 0.0, f"{got!r} fits, but computes {flops:,} FLOPs again, where {again:,} would do"


cheapest_policy = Exercise(
    id="lab02.cheapest_policy",
    points=3,
    draw=draw_limits,
    call=each_limit,
    truth=lambda case: {name: cheapest(one["run"], one["limit_bytes"]) for name, one in case.items()},
    compare=partial(compare_each, compare_policy),
    hints=(
        'estimate(Run.parse({**run, "checkpointing": policy}), "cpu").peak_bytes says whether a policy fits.',
        "Count what running a layer again costs: 2 FLOPs a token for each weight of its matrices but down, and "
        "attention's two products. Then: which of it, in how many layers, does a policy compute again?",
        "full: all layers, all of it. keep-attention: all layers without attention. every-2: half of the layers, "
        "rounded up, all of it. none and keep-matmul-attention: nothing. Then min over those that fit, by that number.",
    ),
    forbidden=("dry_run", "TrainingStep", "FlopCounterMode"),
)


def each_stack(function: Callable, case: dict) -> dict:
    """`function(layers, input_bytes, layer_bytes)` for every stack, by its name."""
    return {name: function(**stack) for name, stack in case.items()}


def compare_stretch(got: Any, truth: dict) -> tuple[float, str]:
    """Right where the measured peak of `got` layers a segment is the lowest, to within half an input."""
    peaks = truth["peaks"]
    best, fewest = min(peaks), 1 + peaks.index(min(peaks))
    if type(got) is not int or not 1 <= got <= len(peaks):
        return close(None, got, fewest)
    if peaks[got - 1] <= best + truth["input_bytes"] // 2:
        return 1.0, "as expected"
    sentence = f"with {got} layers a segment the peak is {peaks[got - 1] / best:.3g} times the lowest that is possible"
    return 0.0, f"{sentence}: {'fewer' if got > fewest else 'more'} would be better"


segment_layers = Exercise(
    id="lab02.segment_layers",
    points=2,
    draw=stretches.draw_stacks,
    call=each_stack,
    truth=partial(each_stack, stretches.measured),
    compare=partial(compare_each, compare_stretch),
    hints=(
        "Write the bytes that are alive while segment i is computed again, then take the largest over i.",
        "Segments after i are done, their inputs gone: i inputs are alive, and the layers of segment i.",
        "Try every size from 1 to layers; there is no need for a formula of the best one.",
    ),
    forbidden=("labs_utils", "torch.utils.checkpoint", "torch_checkpoint"),
)

EXERCISES = (policy_bytes, cheapest_policy, segment_layers, checkpoint)
