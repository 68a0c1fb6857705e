"""Checkpointing policies under a memory limit: peaks that the tracker sees, and FLOPs that torch counts."""

from __future__ import annotations

from functools import cache
from json import dumps, loads

import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from labs_utils.dry_run import watch_parts
from labs_utils.estimate import estimate
from labs_utils.run import Run
from labs_utils.tracker import MemoryTracker
from labs_utils.training import TrainingStep, checkpoint_layers

POLICIES = ("none", "keep-matmul-attention", "every-2", "keep-attention", "full")


def draw_limits(rng) -> dict:
    """Six situations: a run and a limit. With few tokens half of the layers are cheaper than all without attention,
    with many it is the other way round."""
    short = draw_run(rng, seq_len=8 * int(rng.integers(8, 12)))
    long = draw_run(rng, seq_len=8 * int(rng.integers(44, 56)))
    return {
        "few tokens, room for all": limited(short, "none", 1.2),
        "few tokens, a little short": limited(short, "keep-matmul-attention", "none"),
        "few tokens, halfway": limited(short, "every-2", "keep-matmul-attention"),
        "many tokens, halfway": limited(long, "every-2", "keep-matmul-attention"),
        "many tokens, tight": limited(long, "full", "keep-attention"),
        "many tokens, hopeless": limited(long, "full", 0.9),
    }


def draw_run(rng, **fixed) -> dict:
    """A tiny run with wide attention, so that half of the layers keep clearly less than all matrix products do."""
    heads = int(rng.integers(3, 6))
    model = {
        "hidden_size": 64,
        "intermediate_size": 16 * int(rng.integers(7, 10)),
        "num_hidden_layers": 3,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "head_dim": 32,
        "vocab_size": 64,
    }
    return Run(model=model, optimizer="sgd", **fixed).to_dict()


def limited(run: dict, fits: str, above: str | float) -> dict:
    """A situation whose limit lies between the estimated peaks of two policies, or at a factor of one."""
    low = estimated_peak(run, fits)
    high = estimated_peak(run, above) if isinstance(above, str) else 2 * low * above - low
    return {"run": run, "limit_bytes": (low + high) // 2 if isinstance(high, int) else int((low + high) / 2)}


def estimated_peak(run: dict, policy: str) -> int:
    return estimate(Run.parse({**run, "checkpointing": policy}), "cpu").peak_bytes


def cheapest(run: dict, limit_bytes: int) -> dict:
    """The first policy with the fewest FLOPs computed again of those that fit, or None; and what was measured."""
    measured = measured_policies(dumps(run))
    fitting = [policy for policy in POLICIES if measured[policy]["peak_bytes"] <= limit_bytes]
    best = min(fitting, key=lambda policy: measured[policy]["flops_again"], default=None)
    return {"best": best, "limit_bytes": limit_bytes, "measured": measured}


@cache
def measured_policies(run_json: str) -> dict[str, dict[str, int]]:
    """The tracked peak of a real step, and the FLOPs beyond those of `none`, for each policy, on one model."""
    run = Run.parse({**loads(run_json), "checkpointing": "none"})
    step, measured = TrainingStep(run, "cpu"), {}
    for policy in POLICIES:
        for layer in step.model.model.layers:
            vars(layer).pop("forward", None)  # what the policy before has put there
        checkpoint_layers(run.replace(checkpointing=policy), step.model.model.layers)
        measured[policy] = {"peak_bytes": tracked_peak(step), "flops_again": counted_flops(step)}
    plain = measured["none"]["flops_again"]
    return {policy: {**found, "flops_again": found["flops_again"] - plain} for policy, found in measured.items()}


def tracked_peak(step: TrainingStep) -> int:
    """The most bytes in tensors at any moment of a real step on a CPU; the run's optimizer keeps no states."""
    tracker = MemoryTracker(step.run.model.vocab_size)
    with torch.enable_grad(), tracker:
        watch_parts(tracker, step)
        step(tracker.phase)
    return tracker.timeline.peak().live_bytes


def counted_flops(step: TrainingStep) -> int:
    """FLOPs of matrix products and attention in forward and backward, as torch counts them."""
    counter = FlopCounterMode(display=False, custom_mapping=CPU_ATTENTION)
    with torch.enable_grad(), counter:
        step.micro_step(lambda phase: None)
    step.model.zero_grad()
    return counter.get_total_flops()


def attention_flops(query, key, value, *args, out_shape=None, **kwargs) -> int:
    """torch counts its fused kernels for GPUs so, and leaves the CPU's out: two products, no half for causal."""
    return sdpa_flop_count(query, key, value)


CPU_ATTENTION = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: attention_flops}
