"""Solutions of Lab 04."""

import torch
import torch.distributed as dist


def zero1_step(group, weights: torch.Tensor, gradient: torch.Tensor, state: dict, lr: float) -> None:
    ranks, numel = group.size(), weights.numel()
    share = -(-numel // ranks)
    padding = share * ranks - numel
    mine = torch.empty(share)
    dist.reduce_scatter(mine, list(torch.nn.functional.pad(gradient, (0, padding)).split(share)), group=group)
    mine /= ranks
    if not state:
        state.update(step=0, mean=torch.zeros(share), square=torch.zeros(share))
    state["step"] += 1
    state["mean"].mul_(0.9).add_(mine, alpha=0.1)
    state["square"].mul_(0.999).addcmul_(mine, mine, value=0.001)
    mean = state["mean"] / (1 - 0.9 ** state["step"])
    square = state["square"] / (1 - 0.999 ** state["step"])
    part = torch.nn.functional.pad(weights, (0, padding)).split(share)[group.rank()].clone()
    part -= lr * (0.01 * part + mean / (square.sqrt() + 1e-8))
    parts = [torch.empty(share) for _ in range(ranks)]
    dist.all_gather(parts, part, group=group)
    weights.copy_(torch.cat(parts)[:numel])


def rank_bytes(numels: list[int], stage: int, world_size: int) -> dict[str, int]:
    def rounded_up(numel, multiple):
        return -(-numel // multiple) * multiple

    whole = sum(numels)
    if stage in (1, 2):
        padded = rounded_up(whole, 2 * world_size)
    else:
        padded = sum(rounded_up(numel, world_size) for numel in numels)
    part = padded // world_size
    return {
        "parameters": 2 * (whole if stage == 0 else part if stage == 3 else padded),
        "gradients": 2 * (part if stage >= 2 else whole),
        "master_weights": 4 * (part if stage else whole),
        "moments": 8 * (part if stage else whole),
    }


def step_traffic(parameters: int, stage: int, world_size: int, grad_accum: int) -> float:
    one_pass = 2 * parameters * (world_size - 1) / world_size
    if stage == 3:
        return 3 * one_pass * grad_accum
    reduced = grad_accum if stage == 2 else 1
    return 2 * one_pass * reduced + (one_pass if stage else 0)


def lowest_stage(parameters: int, world_size: int, other_bytes: int, memory_bytes: int) -> int | None:
    n = world_size
    for stage, each in enumerate((16, 4 + 12 / n, 2 + 14 / n, 16 / n)):
        if each * parameters + other_bytes <= memory_bytes:
            return stage
    return None
