"""`lab01.measure_saved`: a student's meter of saved bytes, held against the course's own on several formulas."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.nn import functional as F

from labs_utils.exercises.contract import Mark
from labs_utils.exercises.marking import compare_bytes, exercise_of_situations, with_cause
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


def compare_meter(situation: dict, got: Any, expected: int) -> Mark:
    """Right to the byte, or told by which factor, and by which mistake."""
    mark = compare_bytes(
        situation,
        got,
        expected,
        too_few="a view keeps its whole storage alive, and types differ in size: ask the storage for its bytes",
        too_many="is a storage counted more than once, or one of a parameter (a view of it too) or an input?",
    )
    return mark if mark.score == 1 else with_cause(mark, got, mistakes_at(situation))


def mistakes_at(situation: dict) -> dict[str, int]:
    """What some meters would find, by what is wrong with them."""
    module, inputs = module_and_inputs(situation)
    saved: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: saved.append(tensor) or tensor, lambda tensor: tensor):
        output = module(*inputs)  # noqa: F841  keeps every address alive
    storages = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in saved}
    owned = {each.untyped_storage().data_ptr() for each in [*module.parameters(), *inputs]}
    given = {each.untyped_storage().data_ptr() for each in inputs}
    kept = [each for each in saved if each.untyped_storage().data_ptr() not in owned]
    views = {each.untyped_storage().data_ptr(): each.nbytes for each in kept}
    return {
        "handed over twice": sum(each.nbytes for each in kept),
        "parameters": sum(storages[each] for each in storages if each not in given),
        "size of the view": sum(views.values()),
        "four bytes": sum(4 * each.numel() for each in {each.data_ptr(): each for each in kept}.values()),
    }


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
    compare=compare_meter,
    hints={
        "handed over twice": (
            "tensor.untyped_storage().data_ptr() tells storages apart: fill a dict {data_ptr: nbytes}."
        ),
        "parameters": (
            "Leave out the storages of module.parameters() and of `inputs`, and with them all views of these."
        ),
        "size of the view": (
            "A view keeps its whole storage alive: untyped_storage().nbytes(), not the view's own size."
        ),
        "four bytes": "Not every number takes four bytes: ask the storage, nbytes().",
        "too few": (
            "saved_tensors_hooks(pack, unpack) calls pack on every tensor saved. Keep the output until you have "
            "counted."
        ),
        "too many": "Only what backward needs and wouldn't be there anyway counts, each storage once.",
        "units": "Bytes are asked, not KB or MB.",
    },
    why="Autograd hands every saved tensor to your hook, and a tensor's storage says which memory is really held. "
    "Counting storages, not tensors, is what makes the meter exact.",
    forbidden=("labs_utils", "MemoryTracker"),
)
