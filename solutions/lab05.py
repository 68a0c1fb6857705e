"""Solutions of Lab 05."""

import math

import torch


def cpu_offloaded_adam(memories, weights: list, gradients: list, state: dict, lr: float) -> None:
    if not state:
        masters = [memories.to_host(weight).float() for weight in weights]
        moments = [(torch.zeros_like(master), torch.zeros_like(master)) for master in masters]
        state.update(step=0, masters=masters, moments=moments)
    state["step"] += 1
    one, two = 1 - 0.9 ** state["step"], 1 - 0.999 ** state["step"]
    for weight, gradient, master, (mean, square) in zip(
        weights, gradients, state["masters"], state["moments"], strict=True
    ):
        wide = memories.to_host(gradient).float()
        mean.mul_(0.9).add_(wide, alpha=0.1)
        square.mul_(0.999).addcmul_(wide, wide, value=0.001)
        master -= lr * (0.01 * master + mean / one / ((square / two).sqrt() + 1e-8))
        weight.copy_(master.bfloat16())


def offload_traffic(parameters: int, stage: int, world_size: int, grad_accum: int) -> dict[str, float]:
    part = parameters / world_size
    on_host = grad_accum if stage == 2 and grad_accum > 1 else 0
    return {"down": 4 * part + 2 * part * on_host, "up": 2 * part + 2 * part * max(0, on_host - 1)}


def offloaded_seconds(forward: float, backward: list[float], numels: list[int], link: float, adam: float) -> float:
    made, sent = forward, 0.0
    for seconds, numel in zip(backward, numels, strict=True):
        made += seconds
        sent = max(sent, made) + 2 * numel / link
    return sent + sum(numels) / adam + 2 * sum(numels) / link


def fewest_micro_steps(micro: float, update: float, each: float, once: float, bound: float) -> int | None:
    gained = (bound - 1) * micro - each
    missing = once - bound * update
    if missing <= gained:
        return 1
    return math.ceil(missing / gained) if gained > 0 else None
