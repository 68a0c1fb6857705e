"""Lab 01, forward and backward memory: each answer is held against bytes that torch really keeps."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from json import dumps
from typing import Any

import torch
from torch.nn import Parameter
from torch.nn import functional as F

from labs_utils.exercises.comparing import close
from labs_utils.exercises.contract import Exercise
from labs_utils.exercises.kept import (
    compare_bytes,
    compare_each,
    each_formula,
    kept_bytes,
    layer_saved_bytes,
    mean_mark,
)
from labs_utils.exercises.peaks import draw_runs, dry_run_peak
from labs_utils.training.step import IGNORED_LABEL

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
PEAK_TOLERANCE = 0.02  # the small terms that the question leaves out: final norm, token ids, rotary tables
LOSS_TOLERANCE = 1e-4  # fp32 sums in another order


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


def each_recipe(function: Callable, case: dict) -> dict:
    """`function` on every recipe at the case's number of parameters, by the recipe's name."""
    recipes = {name: dict(zip(RECIPE_KEYS, types, strict=True)) for name, types in RECIPES.items()}
    return {name: function(case["parameters"], recipe) for name, recipe in recipes.items()}


def compare_state(got: Any, expected: dict) -> tuple[float, str]:
    """A recipe is right as a whole: most kinds are right in most mistakes."""
    if type(got) is not dict or got.keys() != expected.keys():
        return close(None, got, expected)
    marks = {
        kind: compare_bytes(got[kind], nbytes, 0, STATE_CAUSES[kind], "is it the recipe's type, and not a None?")
        for kind, nbytes in expected.items()
    }
    score, sentence = mean_mark(marks)
    return float(score == 1), sentence


state_bytes = Exercise(
    id="lab01.state_bytes",
    points=2,
    draw=lambda rng: {"parameters": int(rng.integers(1_000, 20_000))},
    call=each_recipe,
    truth=partial(each_recipe, trained_state_bytes),
    compare=partial(compare_each, compare_state),
    hints=(
        "A bf16 number takes 2 bytes, an fp32 number 4; count numbers per parameter, kind by kind.",
        "Adam keeps two numbers per parameter, a mean of gradients and a mean of their squares.",
        "optimizer_states = parameters * (2 * bytes of the moments' type + bytes of the master's type, 0 for None)",
    ),
)


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


saved_bytes = Exercise(
    id="lab01.saved_bytes",
    points=2,
    draw=draw_layer,
    call=lambda fn, case: fn(case["model"], case["tokens"]),
    truth=lambda case: layer_saved_bytes(**case),
    compare=lambda case, answer, truth: compare_bytes(
        answer,
        truth,
        rel=0,
        too_few="RMSNorm computes in fp32 and saves that copy too, and SwiGLU saves four tensors, not one or two",
        too_many="a storage counts once however many operators save it, keys and values have fewer heads than "
        "queries, and flash attention saves no scores",
    ),
    hints=(
        "Go through the layer operator by operator; what does backward need of each? Adding saves nothing.",
        "Norm (twice): fp32 copy, 1/rms (4 bytes a token), normalised, output. SwiGLU: gate, silu, up, their product.",
        "Attention: q, k, v and output in bf16, and the log-sum-exp of each head, 4 bytes a token.",
    ),
    forbidden=("transformers", "saved_tensors_hooks", "labs_utils"),
)

measure_saved = Exercise(
    id="lab01.measure_saved",
    points=3,
    draw=lambda rng: {
        "seed": int(rng.integers(2**31)),
        "tokens": int(rng.integers(20, 60)),
        "width": 2 * int(rng.integers(10, 40)),
    },
    call=each_formula,
    truth=partial(each_formula, lambda module, inputs: kept_bytes(module, inputs, module.parameters())),
    compare=partial(
        compare_each,
        partial(
            compare_bytes,
            rel=0,
            too_few="a view keeps its whole storage alive, and types differ in size: ask the storage for its bytes",
            too_many="is a storage counted more than once, or one of a parameter (a view of it too) or an input?",
        ),
    ),
    hints=(
        "torch.autograd.graph.saved_tensors_hooks(pack, unpack) calls pack on every tensor that autograd saves.",
        "tensor.untyped_storage() has data_ptr(), which tells storages apart, and nbytes().",
        "Fill a dict {data_ptr: nbytes} in pack, leave out the data_ptrs of parameters and inputs, sum the values; "
        "keep the output until then, or storages are freed and their addresses used again.",
    ),
    forbidden=("labs_utils", "MemoryTracker"),
)


def compare_peak(got: Any, expected: dict) -> tuple[float, str]:
    """Half for the phase, half for the bytes."""
    if type(got) is not dict or got.keys() != expected.keys():
        return close(None, got, expected)
    score, sentence = close(None, got["phase"], expected["phase"])
    phase = score, f"{sentence}, where {expected['bytes']:,} bytes are in use"
    few = "weights, moments, kept activations: is one of them left out, or a phase?"
    many = "only what is alive at the same moment adds up: there are no gradients yet in the loss, no logits later"
    nbytes = compare_bytes(got["bytes"], expected["bytes"], PEAK_TOLERANCE, few, many)
    return mean_mark({"phase": phase, "bytes": nbytes})


peak = Exercise(
    id="lab01.peak",
    points=3,
    draw=draw_runs,
    call=lambda fn, case: {name: fn(run) for name, run in case.items()},
    truth=lambda case: {name: dry_run_peak(dumps(run)) for name, run in case.items()},
    compare=partial(compare_each, compare_peak),
    hints=(
        "Compute the bytes of each moment by itself, then take the largest. All of them hold weights and moments.",
        "Weights and moments: 2 + 4 bytes a parameter. Loss: 3 * 4 * vocab_size bytes a token on top of what is kept.",
        "The head's gradient is 2 * vocab_size * hidden_size bytes, a layer's 2 * layer_parameters. In the backward of "
        "layer i the layers above it are done: num_hidden_layers - i of them.",
    ),
    forbidden=("labs_utils", "dry_run", "estimate"),
)


def draw_loss(rng) -> dict:
    """Logits and their log-softmax take over 549 MB, beyond the judge's cap, without ignored tokens; a chunk's 50."""
    chunk_tokens = int(rng.integers(44, 50))
    return {
        "seed": int(rng.integers(2**31)),
        "tokens": 17 * chunk_tokens + int(rng.integers(9, chunk_tokens)),
        "hidden_size": 16,
        "vocab_size": 128256,
        "chunk_tokens": chunk_tokens,
        "prompt_tokens": 2 * chunk_tokens,
    }


def loss_tensors(case: dict) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """hidden, weight and labels: a prompt and a fifth of the rest ignored, later tokens harder to predict."""
    generator = torch.Generator().manual_seed(case["seed"])
    tokens, hidden_size, vocab_size = case["tokens"], case["hidden_size"], case["vocab_size"]
    hidden = torch.randn(tokens, hidden_size, generator=generator) * torch.linspace(0.1, 1, tokens)[:, None]
    weight = torch.randn(vocab_size, hidden_size, generator=generator)
    labels = torch.randint(vocab_size, (tokens,), generator=generator)
    labels[torch.rand(tokens, generator=generator) < 1 / 5] = IGNORED_LABEL
    labels[: case["prompt_tokens"]] = IGNORED_LABEL
    return hidden, weight, labels


def mean_loss(case: dict) -> float:
    """torch's own cross-entropy of every token that counts, summed row by row."""
    hidden, weight, labels = loss_tensors(case)
    counted = labels != IGNORED_LABEL
    rows = zip(hidden[counted].split(32), labels[counted].split(32), strict=True)
    return sum(F.cross_entropy(x @ weight.T, y, reduction="sum").item() for x, y in rows) / int(counted.sum())


def compare_loss(case: dict, answer: Any, truth: float) -> tuple[float, str]:
    """`close`, with the factor and a likely cause."""
    score, sentence = close(case, answer, truth, rel=LOSS_TOLERANCE)
    if score == 1 or type(answer) is not float:
        return score, sentence
    if math.isnan(answer):
        return score, f"{sentence}: the mean over a chunk whose labels are all -100 is 0 / 0"
    cause = "are ignored tokens in the denominator, or chunks of few labels weighed like full ones?"
    return score, f"{sentence}, {answer / truth:.4g} times as much: {cause}"


chunked_loss = Exercise(
    id="lab01.chunked_loss",
    points=2,
    draw=draw_loss,
    call=lambda fn, case: float(fn(*loss_tensors(case), case["chunk_tokens"])),
    truth=mean_loss,
    compare=compare_loss,
    hints=(
        "A mean is a sum and a count; carry both from chunk to chunk and divide once.",
        "hidden.split(chunk_tokens) and labels.split(chunk_tokens) go together; the last chunk may be shorter.",
        'F.cross_entropy(chunk @ weight.T, labels, reduction="sum") leaves labels of -100 out of the sum.',
    ),
    forbidden=("liger_kernel", "linear_cross_entropy"),
)

EXERCISES = (state_bytes, saved_bytes, measure_saved, peak, chunked_loss)
