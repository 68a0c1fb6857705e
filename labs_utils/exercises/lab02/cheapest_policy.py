"""`lab02.cheapest_policy`: what fits and computes least again, held against tracked peaks and counted FLOPs."""

from __future__ import annotations

from functools import cache
from json import dumps, loads
from math import ceil
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry, sdpa_flop_count

from labs_utils.answers.estimate import estimate
from labs_utils.exercises.contract import Mark
from labs_utils.exercises.marking import AS_EXPECTED, exercise_of_situations
from labs_utils.profiling.tracker import MemoryTracker
from labs_utils.run import Run
from labs_utils.training.step import TrainingStep, checkpoint_layers
from labs_utils.training.tracked import watch_parts

POLICIES = ("none", "keep-matmul-attention", "every-2", "keep-attention", "full")


def draw_limits(rng) -> dict:
    """Six situations: a run and a limit. With few tokens half of the layers are cheaper than all without attention,
    with many it is the other way round.

    What few tokens are depends on the model: by its layers or its hidden size, "few" are more here than "many". Both
    are so close to where the order turns that every product counts, and their micro-batch and grouping are the same.
    """
    same = {"kv_heads": int(rng.integers(1, 3)), "micro_batch": int(rng.integers(6, 9))}
    larger = ({"layers": 5}, {"hidden": 96})[int(rng.integers(2))]
    short = draw_run(rng, crossover=rng.uniform(0.94, 0.97), **same, **larger)
    long = draw_run(rng, crossover=1.017, **same)
    return {
        "few tokens, room for all": limited(short, "none", 1.2),
        "few tokens, a little short": limited(short, "keep-matmul-attention", "none"),
        "few tokens, halfway": limited(short, "every-2", "keep-matmul-attention"),
        "many tokens, halfway": limited(long, "every-2", "keep-matmul-attention"),
        "many tokens, tight": limited(long, "full", "keep-attention"),
        "many tokens, hopeless": limited(long, "full", 0.9),
    }


def draw_run(rng, crossover: float, layers: int = 3, hidden: int = 64, *, kv_heads: int, micro_batch: int) -> dict:
    """A tiny run with wide attention, so that half of the layers keep clearly less than all matrix products do.

    `crossover` says how many tokens there are, as a factor of the sequence length at which half of an odd number of
    layers cost as much as all without attention.
    """
    group = int(rng.integers(4, 6))
    queries, keys = 32 * kv_heads * group, 32 * kv_heads
    mlp = 2 * queries + 16 * int(rng.integers(-1, 2))
    model = {
        "hidden_size": hidden,
        "intermediate_size": mlp,
        "num_hidden_layers": layers,
        "num_attention_heads": kv_heads * group,
        "num_key_value_heads": kv_heads,
        "head_dim": 32,
        "vocab_size": 64,
    }
    half = (layers + 1) // 2
    equal = (layers - half) / half * hidden * (queries + keys + mlp) / queries
    return Run(model=model, optimizer="sgd", seq_len=ceil(crossover * equal), micro_batch=micro_batch).to_dict()


def limited(run: dict, fits: str, above: str | float) -> dict:
    """A situation whose limit lies between the estimated peaks of two policies, or at a factor of one."""
    low = estimated_peak(run, fits)
    high = estimated_peak(run, above) if isinstance(above, str) else 2 * low * above - low
    return {"run": run, "limit_bytes": (low + high) // 2 if isinstance(high, int) else int((low + high) / 2)}


def estimated_peak(run: dict, policy: str) -> int:
    """The peak bytes that the course's formulas give on a CPU."""
    return estimate(Run.parse({**run, "checkpointing": policy}), "cpu").peak_bytes


def cheapest(situation: dict) -> dict:
    """The first policy with the fewest FLOPs computed again of those that fit, or None; and the steps under each."""
    steps = tracked_steps(dumps(situation["run"]))
    fitting = [policy for policy in POLICIES if steps[policy]["peak_bytes"] <= situation["limit_bytes"]]
    best = min(fitting, key=lambda policy: steps[policy]["flops_again"], default=None)
    return {"best": best, "steps": steps}


@cache
def tracked_steps(run_json: str) -> dict[str, dict[str, int]]:
    """The tracked peak of a real step, and the FLOPs beyond those of `none`, for each policy, on one model."""
    run = Run.parse({**loads(run_json), "checkpointing": "none"})
    step, tracked = TrainingStep(run, "cpu"), {}
    for policy in POLICIES:
        checkpoint_layers(run.replace(checkpointing=policy), step.model.model.layers)
        tracked[policy] = tracked_step(step)
    plain = tracked["none"]["flops"]
    return {
        policy: {"peak_bytes": one["peak_bytes"], "flops_again": one["flops"] - plain}
        for policy, one in tracked.items()
    }


def tracked_step(step: TrainingStep) -> dict[str, int]:
    """The most bytes in tensors at any moment of a real step on a CPU, and its FLOPs; its optimizer keeps no states."""
    tracker = CountingTracker(step.run.model.vocab_size, step.run.tokens)
    with torch.enable_grad(), tracker:
        watch_parts(tracker, step)
        step(tracker.phase)
        tracker.phase("after")
    return {"peak_bytes": tracker.timeline.peak().live_bytes, "flops": tracker.flops}


class CountingTracker(MemoryTracker):
    """A tracker that adds up the FLOPs of matrix products and of attention's forward, by torch's own formulas."""

    flops = 0

    def after_operator(self, func, args) -> None:
        formula = FORMULAS.get(func.overloadpacket)
        if formula:
            self.flops += formula(*args)


def attention_flops(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, *_) -> int:
    """FLOPs of the CPU's fused attention, which torch doesn't count: two products, no half for causal.

    Query heads that share a key head multiply by it each; `sdpa_flop_count` of torch 2.11 asks for equal numbers.
    """
    each_head = [(*queries.shape[:2], *shared.shape[2:]) for shared in (keys, values)]
    return sdpa_flop_count(queries.shape, *each_head)


FORMULAS = flop_registry | {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: attention_flops}


def compare_policy(situation: dict, got: Any, truth: dict) -> Mark:
    """Right or wrong, and whether it doesn't fit or isn't the cheapest."""
    best, steps, limit = truth["best"], truth["steps"], situation["limit_bytes"]
    if got == best and type(got) is type(best):
        return AS_EXPECTED
    if got is None:
        return Mark(
            0.0, f"expected {best!r}, got None: its peak of {steps[best]['peak_bytes']:,} bytes fits", "one fits"
        )
    if type(got) is not str or got not in steps:
        return Mark(0.0, f"expected one of {', '.join(POLICIES)} or None, got {str(got)[:40]!r}")
    peak, flops = steps[got]["peak_bytes"], steps[got]["flops_again"]
    if peak > limit:
        return Mark(0.0, f"{got!r} peaks at {peak:,} bytes, and the limit is {limit:,}", "too large")
    again = steps[best]["flops_again"]
    if flops == again:
        sentence = f"{got!r} fits, but so does {best!r}, which computes no more again and comes earlier in the list"
        return Mark(0.0, sentence, "a tie")
    return Mark(0.0, f"{got!r} fits, but computes {flops:,} FLOPs again, where {again:,} would do", "too dear")


EXERCISE = exercise_of_situations(
    id="lab02.cheapest_policy",
    cases=2,
    points=3,
    minutes=25,
    difficulty="hard",
    draw=draw_limits,
    call=lambda fn, situation: fn(situation["run"], situation["limit_bytes"]),
    truth=cheapest,
    compare=compare_policy,
    hints={
        "one fits": "None is only for a limit that no policy keeps: min(..., default=None) over those that fit.",
        "too large": (
            'estimate(Run.parse({**run, "checkpointing": policy}), "cpu").peak_bytes is the peak of a whole step; '
            "compare that with the limit."
        ),
        "a tie": "Of policies that compute equally much again, take the first in the list: min keeps the order.",
        "too dear": (
            "Count what running a layer again costs: 2 FLOPs a token for each weight of its matrices but down, "
            "and attention's two products. full: all layers, all of it. keep-attention: without attention. "
            "every-2: half of the layers, rounded up."
        ),
    },
    why="Among the policies that fit, the cheapest recomputes least. "
    "Memory is a limit to stay below, and time is what is left to choose by.",
    forbidden=("dry_run", "TrainingStep", "FlopCounterMode"),
)
