"""`lab01.measure_saved`: a student's meter of saved bytes, held against the course's own on several formulas."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch.nn import functional as F

from labs_utils.exercises.marking import compare_bytes, exercise_of_situations
from labs_utils.exercises.saved_bytes import kept_bytes


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


def formulas_at(case: dict) -> dict[str, dict]:
    """Every formula, by its name, at the case's sizes."""
    return {name: {**case, "formula": name} for name in FORMULAS}


def module_and_inputs(situation: dict) -> tuple[Formula, list[torch.Tensor]]:
    """The module of a formula, and its one input of shape (tokens, width)."""
    torch.manual_seed(situation["seed"])
    x = torch.randn(situation["tokens"], situation["width"], dtype=torch.bfloat16, requires_grad=True)
    return Formula(FORMULAS[situation["formula"]], situation["width"]), [x]


def metered(situation: dict) -> int:
    """What the course's own meter finds."""
    module, inputs = module_and_inputs(situation)
    return kept_bytes(module, inputs, module.parameters())


EXERCISE = exercise_of_situations(
    id="lab01.measure_saved",
    points=3,
    minutes=20,
    difficulty="medium",
    draw=lambda rng: {
        "seed": int(rng.integers(2**31)),
        "tokens": int(rng.integers(20, 60)),
        "width": 2 * int(rng.integers(10, 40)),
    },
    situations=formulas_at,
    call=lambda fn, situation: fn(*module_and_inputs(situation)),
    truth=metered,
    compare=partial(
        compare_bytes,
        too_few="a view keeps its whole storage alive, and types differ in size: ask the storage for its bytes",
        too_many="is a storage counted more than once, or one of a parameter (a view of it too) or an input?",
    ),
    hints=(
        "torch.autograd.graph.saved_tensors_hooks(pack, unpack) calls pack on every tensor that autograd saves.",
        "tensor.untyped_storage() has data_ptr(), which tells storages apart, and nbytes().",
        "Fill a dict {data_ptr: nbytes} in pack, leave out the data_ptrs of parameters and inputs, sum the values; "
        "keep the output until then, or storages are freed and their addresses used again.",
    ),
    why="Autograd hands every saved tensor to your hook, and a tensor's storage says which memory is really held. "
    "Counting storages, not tensors, is what makes the meter exact.",
    forbidden=("labs_utils", "MemoryTracker"),
)
