"""`lab03.accumulate`: gradients of unequal micro-batches, held against the full batch in one piece."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from labs_utils.exercises.contract import Mark
from labs_utils.exercises.marking import AS_EXPECTED, close, exercise_of_situations
from labs_utils.exercises.saved_bytes import KeepsBytes
from labs_utils.training.step import IGNORED_LABEL

GRADIENT_TOLERANCE = 1e-5  # of the gradient's length: all is in fp64, unless a student computes the loss in fp32


class SmallModel(torch.nn.Module):
    """A language model of a few parameters and no attention; `model(input_ids)` returns logits."""

    def __init__(self, vocab_size: int = 64, width: int = 8, bytes_per_token: int = 0):
        super().__init__()
        self.bytes_per_token = bytes_per_token
        self.embedding = torch.nn.Embedding(vocab_size, width)
        self.inner = torch.nn.Linear(width, width, bias=False)
        self.head = torch.nn.Linear(width, vocab_size, bias=False)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        hidden = KeepsBytes.apply(self.embedding(input_ids), self.bytes_per_token * input_ids.numel())
        return self.head(hidden + torch.relu(self.inner(hidden)))


def draw_accumulations(rng) -> dict:
    """Batches cut into micro-batches, by the targets of each row; the last keeps 2 GiB where 512 MiB are allowed."""
    unequal = [int(n) for n in rng.permutation([2, 3, 5, 8, 13])]
    many = [int(n) for n in rng.permutation([*range(1, 14), *range(3, 10)])]
    batches = {
        "equal counts": {"targets": [7] * 4},
        "unequal counts": {"targets": unequal},
        "a micro-batch without labels": {"targets": [*unequal[:2], 0, *unequal[2:]]},
        "gradients left from before": {"targets": unequal, "leftover": 1.0},
        "many micro-batches": {"targets": many, "bytes_per_token": 7 * 2**19},
    }
    defaults = {"leftover": 0.0, "bytes_per_token": 0}
    return {name: {"seed": int(rng.integers(2**31)), **defaults, **batch} for name, batch in batches.items()}


def model_and_batches(situation: dict) -> tuple[SmallModel, list[dict[str, torch.Tensor]]]:
    """The model in fp64, and micro-batches of two rows, not all as long; some use fewer words, and are easier."""
    generator = torch.Generator().manual_seed(situation["seed"])
    model = SmallModel(bytes_per_token=situation["bytes_per_token"]).double()
    for weight in model.parameters():
        weight.data = torch.randn(weight.shape, generator=generator, dtype=torch.float64) * weight.shape[-1] ** -0.5
    batches = []
    for number, targets in enumerate(situation["targets"]):
        tokens = max(situation["targets"]) + 2 + number % 3
        ids = torch.randint(64 // (1 + targets % 3), (2, tokens), generator=generator)
        labels = ids.clone()
        labels[:, targets + 1 :] = IGNORED_LABEL
        labels[0, 1 if targets > 1 else 0] = IGNORED_LABEL  # a word of a prompt
        labels[1, 0] = ids[1, 0] if targets else IGNORED_LABEL
        batches.append({"input_ids": ids, "labels": labels})
    return model, batches


def flat_gradient(model: torch.nn.Module) -> torch.Tensor:
    """All gradients in one vector, zeros where there is none."""
    each = [torch.zeros_like(w) if w.grad is None else w.grad for w in model.parameters()]
    return torch.cat([gradient.flatten() for gradient in each])


def accumulated(function: Callable, situation: dict) -> dict:
    """What `function(model, batches)` leaves in the gradients, what it returns, and what else it changes."""
    model, batches = model_and_batches(situation)
    before = state_of(model, batches)
    if situation["leftover"]:
        for weight in model.parameters():
            weight.grad = torch.full_like(weight, situation["leftover"])
    with torch.enable_grad():
        loss = function(model, list(batches))
    after = state_of(model, batches)
    changed = [name for name in before if not same(before[name], after[name])]
    return {"gradient": flat_gradient(model), "loss": float(loss), "changed": changed}


def state_of(model: torch.nn.Module, batches: list[dict[str, torch.Tensor]]) -> dict[str, list]:
    """What has to be afterwards as it was before, in copies."""
    return {
        "weights": [weight.detach().clone() for weight in model.parameters()],
        "requires_grad": [weight.requires_grad for weight in model.parameters()],
        "training": [module.training for module in model.modules()],
        "batches": [copied(batch.get(key)) for batch in batches for key in ("input_ids", "labels")],
    }


def copied(value: Any) -> Any:
    """A copy where it is a tensor."""
    return value.clone() if isinstance(value, torch.Tensor) else value


def same(one: list, other: list) -> bool:
    """Whether two lists are equal, tensors to the last bit."""
    if len(one) != len(other):
        return False
    pairs = zip(one, other, strict=True)
    return all(
        torch.equal(a, b) if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) else a is b for a, b in pairs
    )


def full_batch(model: torch.nn.Module, batches: list[dict]) -> float:
    """The mean loss over all targets of all rows, and its gradient, by torch's own mean in one piece."""
    model.zero_grad()
    fillers = {"input_ids": 0, "labels": IGNORED_LABEL}
    ids, labels = (
        pad_sequence([row for batch in batches for row in batch[key]], batch_first=True, padding_value=filler)
        for key, filler in fillers.items()
    )
    has_target = labels != IGNORED_LABEL
    has_target[:, 0] = False
    places = has_target.nonzero()
    states = model(ids)[places[:, 0], places[:, 1] - 1]
    loss = F.cross_entropy(states, labels[has_target])
    loss.backward()
    return loss.item()


def compare_gradient(situation: dict, got: Any, expected: dict) -> Mark:
    """Three quarters for the gradient, a quarter for the loss; nothing where anything else is changed."""
    if type(got) is not dict or got["gradient"].shape != expected["gradient"].shape:
        return close(situation, got, expected)
    if got["changed"]:
        return Mark(0.0, f"only .grad is to change; these did too: {', '.join(got['changed'])}", "changed")
    gradient = mark_gradient(got["gradient"], expected["gradient"])
    loss = close(situation, got["loss"], expected["loss"], rel=GRADIENT_TOLERANCE)
    of_the_loss = loss.sentence.replace("expected", "the loss is", 1)
    score = 0.75 * gradient.score + 0.25 * loss.score
    return (
        gradient._replace(score=score)
        if gradient.score < 1
        else Mark(score, of_the_loss, "loss" if score < 1 else None)
    )


def mark_gradient(gradient: torch.Tensor, truth: torch.Tensor) -> Mark:
    """Right or wrong, and how a wrong gradient lies to the right one."""
    if (gradient - truth).norm() <= GRADIENT_TOLERANCE * truth.norm():
        return AS_EXPECTED
    if not gradient.isfinite().all():
        return Mark(0.0, "the gradient isn't finite: the mean of a micro-batch without labels is 0 / 0", "0 / 0")
    times = (gradient @ truth / (truth @ truth)).item()
    off = ((gradient - times * truth).norm() / truth.norm()).item()
    if off <= GRADIENT_TOLERANCE:
        longer = f"the gradient points the right way, and is {times:.4g} times as long"
        return Mark(0.0, f"{longer}: divided by what, and how often?", "length")
    question = "does every target token weigh the same? what was in .grad?"
    return Mark(0.0, f"the gradient is off by {off:.2g} of its length: {question}", "direction")


EXERCISE = exercise_of_situations(
    id="lab03.accumulate",
    points=4,
    minutes=25,
    difficulty="hard",
    draw=draw_accumulations,
    call=accumulated,
    truth=partial(accumulated, full_batch),
    compare=compare_gradient,
    hints={
        "memory": (
            "Call backward after each micro-batch: it frees what that one kept. A sum of losses keeps all graphs."
        ),
        "changed": (
            "Only the gradients are the answer: no optimizer's step, no .eval(), and the batches stay as they are."
        ),
        "0 / 0": "A micro-batch without labels has no mean: add up sums, and divide once, by the count of all targets.",
        "length": (
            "Count the targets of all micro-batches before the first backward: that is the one denominator. "
            "Labels of -100 and the first label of a row are no targets."
        ),
        "direction": (
            'F.cross_entropy(…, reduction="sum") adds up losses without dividing; gradients of sums add up too. '
            "Begin with gradients of None."
        ),
        "loss": "The loss is the mean over all targets of all micro-batches, as the gradient's is.",
    },
    why="A mean over all tokens is a sum divided once. "
    "Micro-batches add up to it only if each is weighed by its own tokens.",
    forbidden=("labs_utils", "accelerate", "transformers", "num_items_in_batch"),
)
