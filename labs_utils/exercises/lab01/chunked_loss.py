"""`lab01.chunked_loss`: a loss whose logits are made in chunks, held against torch's cross-entropy."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn import functional as F

from labs_utils.exercises.contract import Exercise, Mark
from labs_utils.exercises.marking import close, with_cause
from labs_utils.training.step import IGNORED_LABEL

LOSS_TOLERANCE = 1e-4  # fp32 sums in another order


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


def mistakes_at(case: dict, truth: float) -> dict[str, float]:
    """What some mistakes would give, by their cause."""
    hidden, weight, labels = loss_tensors(case)
    chunks = list(zip(hidden.split(case["chunk_tokens"]), labels.split(case["chunk_tokens"]), strict=True))
    counts = [int((y != IGNORED_LABEL).sum()) for _, y in chunks]
    sums = [F.cross_entropy(x @ weight.T, y, reduction="sum").item() for x, y in chunks]
    means = [total / count for total, count in zip(sums, counts, strict=True) if count]
    return {
        "all tokens": truth * sum(counts) / len(labels),
        "mean of means": sum(means) / len(means),
        "last chunk": sum(sums[:-1]) / sum(counts[:-1]),
    }


def compare_loss(case: dict, answer: Any, truth: float) -> Mark:
    """`close`, with the factor and a likely cause."""
    mark = close(case, answer, truth, rel=LOSS_TOLERANCE)
    if mark.score == 1 or type(answer) is not float:
        return mark
    if math.isnan(answer):
        sentence = f"{mark.sentence}: the mean over a chunk whose labels are all -100 is 0 / 0"
        return mark._replace(sentence=sentence, cause="empty chunk")
    likely = "are ignored tokens in the denominator, or chunks of few labels weighed like full ones?"
    mark = mark._replace(sentence=f"{mark.sentence}, {answer / truth:.4g} times as much: {likely}", cause="other")
    return with_cause(mark, answer, mistakes_at(case, truth), rel=LOSS_TOLERANCE)


EXERCISE = Exercise(
    id="lab01.chunked_loss",
    cases=2,
    points=2,
    minutes=15,
    difficulty="medium",
    draw=draw_loss,
    call=lambda fn, case: float(fn(*loss_tensors(case), case["chunk_tokens"])),
    truth=mean_loss,
    compare=compare_loss,
    hints={
        "memory": (
            "Only one chunk's logits may be there at a time: add its loss to a sum, and keep nothing else of the chunk."
        ),
        "empty chunk": "A mean over no labels is 0 / 0: add up sums, and divide once at the end.",
        "all tokens": "Divide by the number of labels that aren't -100, not by all tokens.",
        "mean of means": (
            "A chunk with few labels must not weigh as much as a full one: carry a sum and a count, divide once."
        ),
        "last chunk": "The last chunk may be shorter: hidden.split(chunk_tokens) keeps it.",
        "other": "F.cross_entropy(chunk @ weight.T, labels, reduction='sum') leaves labels of -100 out of the sum.",
    },
    why="A token's loss depends on its own logits alone. "
    "So rows can be made, used and dropped, and only sums are kept.",
    forbidden=("liger_kernel", "linear_cross_entropy"),
)
