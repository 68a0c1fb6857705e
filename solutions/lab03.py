"""Solutions of Lab 03."""

from collections.abc import Callable

import torch
import torch.nn.functional as F


def batch_plan(
    target_tokens: int, seq_len: int, world_size: int, largest_micro_batch: int, sequences: int
) -> dict[str, int]:
    per_rank = -(-target_tokens // (seq_len * world_size))  # sequences of one rank, rounded up
    grad_accum = -(-per_rank // largest_micro_batch)
    micro_batch = -(-per_rank // grad_accum)
    per_step = micro_batch * grad_accum * world_size
    return {
        "micro_batch": micro_batch,
        "grad_accum": grad_accum,
        "tokens_per_step": per_step * seq_len,
        "steps": sequences // per_step,
    }


def accumulate(model: torch.nn.Module, batches: list[dict[str, torch.Tensor]]) -> float:
    targets = [batch["labels"][:, 1:] for batch in batches]
    count = sum((labels != -100).sum() for labels in targets)
    model.zero_grad()
    mean = 0.0
    for batch, labels in zip(batches, targets, strict=True):
        logits = model(batch["input_ids"])[:, :-1]
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum") / count
        loss.backward()
        mean += loss.item()
    return mean


def micro_step_peaks(rest: list[int], gradients: list[int], micro_steps: int) -> list[int]:
    first = max(others + made for others, made in zip(rest, gradients, strict=True))
    later, before = 0, 0
    for others, made in zip(rest, gradients, strict=True):
        anew = max(0, made - before)
        later, before = max(later, others + gradients[-1] + anew), made
    return [first] + [later] * (micro_steps - 1)


def largest_micro_batch(peak_bytes: Callable[[int], int], memory_bytes: int) -> int:
    fits, too_large = 0, 1
    while peak_bytes(too_large) <= memory_bytes:
        fits, too_large = too_large, 2 * too_large
    while too_large - fits > 1:
        middle = (fits + too_large) // 2
        if peak_bytes(middle) <= memory_bytes:
            fits = middle
        else:
            too_large = middle
    return fits
