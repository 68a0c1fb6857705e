"""What modules keep for backward: the meter, the modules it is held to, and how byte counts are compared."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch.nn import functional as F

from labs_utils.exercises.comparing import close
from labs_utils.profiling.tracker import MemoryTracker
from labs_utils.run import Run
from labs_utils.training.step import build_model


def kept_bytes(function: Callable, inputs: list[torch.Tensor], owned: Iterable[torch.Tensor] = ()) -> int:
    """The bytes that `function` makes and that live on for backward once its result itself is dropped.

    Found by watching storages appear and go, not by asking autograd: the storages of `inputs` and `owned` are left
    out, and every other one counts once, whole.
    """
    with torch.enable_grad(), MemoryTracker() as tracker:  # a student's code may have turned gradients off
        tracker.watch("buffers", [*inputs, *owned])
        graph = function(*inputs).grad_fn  # holds what backward needs, and not the result
        *_, last = tracker.timeline.moments((tracker.current_phase,))
        del graph
    return last.parts["activations"]


def layer_saved_bytes(model: dict, tokens: int) -> int:
    """Bytes that the first layer of transformers' bf16 Llama, called on one sequence, keeps for backward.

    Its input isn't among them: the norm saves an fp32 copy instead, and the residual sum saves nothing.
    """
    run = Run(model={**model, "num_hidden_layers": 1, "vocab_size": 8}, seq_len=tokens)
    llama = build_model(run, torch.device("cpu")).model
    hidden = torch.ones(1, tokens, run.model.hidden_size, dtype=torch.bfloat16, requires_grad=True)
    tables = llama.rotary_emb(hidden, torch.arange(tokens)[None])
    return kept_bytes(partial(llama.layers[0], position_embeddings=tables), [hidden], [*llama.parameters(), *tables])


class KeepsBytes(torch.autograd.Function):
    """Passes hidden states on and keeps so many bytes for backward: what a deep layer does, without computing it."""

    @staticmethod
    def forward(ctx, hidden: torch.Tensor, nbytes: int) -> torch.Tensor:
        ctx.save_for_backward(torch.empty(nbytes, dtype=torch.uint8))  # never touched: takes no time
        return hidden.clone()

    @staticmethod
    def backward(ctx, gradient: torch.Tensor):
        ctx.saved_tensors  # noqa: B018  a checkpoint computes them again; a second backward is refused
        return gradient.clone(), None


class Formula(torch.nn.Module):
    """A function of one input of shape (tokens, width) and three bf16 weights of shape (width, width)."""

    def __init__(self, formula: Callable, width: int):
        super().__init__()
        self.formula = formula
        self.weights = torch.nn.ParameterList(torch.randn(width, width, dtype=torch.bfloat16) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.formula(x, *(partial(F.linear, weight=weight) for weight in self.weights))


def rms_norm(x: torch.Tensor) -> torch.Tensor:
    """A norm without a weight that computes in fp32, as transformers' does."""
    wide = x.float()
    return (wide * wide.square().mean(-1, keepdim=True).rsqrt()).to(x.dtype)


FORMULAS = {
    "one linear layer": lambda x, a, b, c: a(x),
    "SwiGLU": lambda x, a, b, c: c(F.silu(a(x)) * b(x)),
    "norms in fp32": lambda x, a, b, c: b(rms_norm(a(rms_norm(x)))),
    "softmax attention": lambda x, a, b, c: torch.softmax(a(x) @ b(x).mT, -1) @ c(x),
    "two halves of one tensor": lambda x, a, b, c: torch.mul(*a(x).chunk(2, -1)),
    "every second column": lambda x, a, b, c: a(x)[:, ::2].sin(),
    "a broadcast column": lambda x, a, b, c: a(x) * b(x).mean(-1, keepdim=True).expand(x.shape),
    "saved by two operators": lambda x, a, b, c: (lambda y: y.sin() + y.exp())(a(x)),
    "a mask": lambda x, a, b, c: x.masked_fill(a(x) > 0, 0.0),
}


def each_formula(function: Callable, case: dict) -> dict:
    """`function(module, inputs)` for every formula at the case's sizes, by name."""
    torch.manual_seed(case["seed"])
    answers = {}
    for name, formula in FORMULAS.items():
        x = torch.randn(case["tokens"], case["width"], dtype=torch.bfloat16, requires_grad=True)
        answers[name] = function(Formula(formula, case["width"]), [x])
    return answers


def compare_bytes(got: Any, expected: int, rel: float, too_few: str, too_many: str) -> tuple[float, str]:
    """`close`, with the factor between the two numbers and a likely cause."""
    score, sentence = close(None, got, expected, rel=rel)
    if score == 1 or type(got) not in (int, float):
        return score, sentence
    if 0 < got * 2**20 < expected:
        return score, f"{sentence}: this looks like MB or GB; bytes are asked"
    factor = f", {got / expected:.3g} times as many" if expected else ""
    return score, f"{sentence} bytes{factor}: {too_few if got < expected else too_many}"


def in_each(function: Callable) -> Callable:
    """For a case of several situations: `function(…, situation)` of each, under its name."""
    return lambda *given: {name: function(*given[:-1], situation) for name, situation in given[-1].items()}


def compare_each(compare: Callable, case: Any, answers: dict, truths: dict) -> tuple[float, str]:
    """`mean_mark` of answers with names, each compared with its truth."""
    return mean_mark({name: compare(answers[name], truth) for name, truth in truths.items()})


def mean_mark(marks: dict[str, tuple[float, str]]) -> tuple[float, str]:
    """The mean score, and the sentence of the first mark that isn't full."""
    wrong = [f"{name}: {sentence}" for name, (score, sentence) in marks.items() if score < 1]
    return sum(score for score, _ in marks.values()) / len(marks), wrong[0] if wrong else "as expected"
