"""`lab02.checkpoint`: a checkpoint on small blocks, with dropout, in graphs and in a deep chain, held against none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from labs_utils.exercises.contract import Exercise, Mark
from labs_utils.exercises.marking import close, mean_mark


class Block(nn.Module):
    """A small MLP with dropout and a residual sum."""

    def __init__(self, width: int):
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.dropout = 0.25

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.dropout(F.gelu(self.up(x)), self.dropout))


CALLS = "the calls of fn in forward and in backward"
DEEP_LAYERS, DEEP_BLOCKS, DEEP_FLOATS = 2, 144, 2**19


def draw_checkpoint(rng) -> dict:
    """Sizes and seeds. The deep part keeps 144 inputs of 2 MiB; twice as much is beyond the judge's cap."""
    return {"seed": int(rng.integers(2**31)), "tokens": int(rng.integers(8, 24)), "width": int(rng.integers(4, 12))}


def gradients_of(loss: torch.Tensor, tensors: list) -> list[torch.Tensor]:
    """The gradients after backward, zeros where there is none, so that a missing one is a wrong number."""
    loss.backward()
    return [torch.zeros_like(tensor) if tensor.grad is None else tensor.grad for tensor in tensors]


def seeded(case: dict) -> tuple[Block, Block, torch.Tensor, torch.Tensor]:
    """Two blocks, an input and a second tensor of the same shape; dropout starts from the same random numbers."""
    torch.manual_seed(case["seed"])
    first, second = Block(case["width"]), Block(case["width"])
    x, other = torch.randn(2, case["tokens"], case["width"])
    return first, second, x.requires_grad_(), other


def one_block(checkpoint: Callable, case: dict) -> dict:
    """The result, and the gradients of the input and of the parameters, without dropout."""
    block, _, x, _ = seeded(case)
    block.dropout = 0.0
    result = checkpoint(block, x)
    grads = gradients_of(result.square().sum(), [x, *block.parameters()])
    return {"the result": result, "the gradients without dropout": grads}


def with_dropout(checkpoint: Callable, case: dict) -> dict:
    """The gradients with dropout on, inside and after, and the random numbers that come after backward."""
    block, _, x, _ = seeded(case)
    result = F.dropout(checkpoint(block, x), 0.5)
    grads = gradients_of(result.square().sum(), [x, *block.parameters()])
    return {"the gradients with dropout": grads, "random numbers drawn after backward": torch.rand(4)}


def in_a_graph(checkpoint: Callable, case: dict) -> dict:
    """Two checkpoints in a row, the first of several inputs (one of integers), amid operators that aren't checkpointed.

    No tensor is used both in a checkpoint and outside: its gradient would be summed in another order.
    """
    first, second, x, other = seeded(case)
    scale = torch.full((case["width"],), 0.5, requires_grad=True)
    order = torch.randperm(case["tokens"])
    hidden = checkpoint(lambda a, b, c, order: first(a * c)[order] - b, x.sin(), other, scale, order)
    loss = checkpoint(second, hidden.tanh()).square().sum()
    grads = gradients_of(loss, [x, scale, *first.parameters(), *second.parameters()])
    return {"the gradients of several inputs, in a larger graph": grads}


def deep(checkpoint: Callable, case: dict, floats: int = DEEP_FLOATS) -> dict:
    """The last gradients of a deep chain: without checkpointing its activations don't fit under the judge's cap."""
    torch.manual_seed(case["seed"])
    x = torch.randn(4096).repeat(floats // 4096).requires_grad_()

    def layers(hidden: torch.Tensor) -> torch.Tensor:
        for _ in range(DEEP_LAYERS):
            hidden = F.leaky_relu(hidden, 0.99)
        return hidden

    hidden = x
    for _ in range(DEEP_BLOCKS):
        hidden = checkpoint(layers, hidden)
    (gradient,) = gradients_of(hidden.sum(), [x])
    return {"the gradient of a deep chain": gradient[:4096].clone()}


def calls(checkpoint: Callable, case: dict) -> dict:
    """How often fn runs in forward, and how often in backward."""
    block, _, x, _ = seeded(case)
    ran = []

    def fn(x: torch.Tensor) -> torch.Tensor:
        ran.append(x.shape)
        return block(x)

    result = checkpoint(fn, x)
    in_forward = len(ran)
    result.sum().backward()
    return {CALLS: [in_forward, len(ran) - in_forward]}


def all_parts(checkpoint: Callable, case: dict, floats: int = DEEP_FLOATS) -> dict:
    """All parts, by name."""
    parts = one_block(checkpoint, case) | with_dropout(checkpoint, case) | in_a_graph(checkpoint, case)
    return parts | calls(checkpoint, case) | deep(checkpoint, case, floats)


def true_parts(case: dict) -> dict:
    """All parts without checkpointing, on a narrower chain; but fn is to run once in forward and once in backward."""
    return all_parts(lambda fn, *inputs: fn(*inputs), case, floats=4096) | {CALLS: [1, 1]}


CAUSES = {
    "the result": "forward returns what fn returns",
    "the gradients without dropout": "does backward run fn again on detached inputs that require gradients, and then "
    "backward through that, so that parameters get theirs too?",
    "the gradients with dropout": "dropout drew another mask the second time: which state must be as it was?",
    "random numbers drawn after backward": "after the recomputation the generator must go on where it was before it",
    "the gradients of several inputs, in a larger graph": "backward returns one gradient for each argument of forward, "
    "in order, and None for fn",
    CALLS: "fn runs once in forward, and once again in backward",
    "the gradient of a deep chain": "each call gets its own inputs back?",
}


def compare_parts(case: dict, answers: Any, truths: dict) -> Mark:
    """Bit for bit, part by part, with a likely cause."""

    def mark_of(part: str) -> Mark:
        mark = close(case, answers[part], truths[part])
        return mark if mark.score == 1 else mark._replace(sentence=f"{mark.sentence}: {CAUSES[part]}", cause=part)

    return mean_mark({part: mark_of(part) for part in truths})


EXERCISE = Exercise(
    id="lab02.checkpoint",
    cases=2,
    points=4,
    minutes=30,
    difficulty="hard",
    draw=draw_checkpoint,
    call=all_parts,
    truth=true_parts,
    compare=compare_parts,
    hints={
        "memory": (
            "Between forward and backward only the inputs are kept, by ctx.save_for_backward: no graph, no copies, "
            "and no list that holds them afterwards."
        ),
        "the result": (
            "A torch.autograd.Function has two static methods: forward(ctx, fn, *inputs), which returns what fn "
            "returns, and backward(ctx, gradient)."
        ),
        "the gradients without dropout": (
            "In backward: detach the inputs, let them require gradients as before, run fn under "
            "torch.enable_grad(), then torch.autograd.backward(output, gradient) fills the .grad of inputs and "
            "parameters."
        ),
        "the gradients with dropout": "Keep torch.get_rng_state() in forward, and go back to it before fn runs again.",
        "random numbers drawn after backward": "Put the random state back that was there before the recomputation.",
        "the gradients of several inputs, in a larger graph": "Return None for fn, then each input's .grad, in order.",
        CALLS: "fn runs once in forward and once in backward: keep nothing of the first run but its inputs.",
        "the gradient of a deep chain": (
            "ctx.save_for_backward(*inputs) keeps each call's own inputs; inside forward no graph is recorded, "
            "and that is all the saving there is."
        ),
    },
    why="Backward needs values, not the graph that first made them. "
    "Running forward again with the same inputs and the same random state gives the same values.",
    self_reported="how often fn runs",
    forbidden=("torch.utils.checkpoint", "torch_checkpoint", "save_on_cpu", "labs_utils"),
)
