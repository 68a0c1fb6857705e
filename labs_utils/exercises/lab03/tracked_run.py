"""Small runs of Lab 03, and their steps on this CPU, tracked micro-step by micro-step."""

from __future__ import annotations

from functools import cache
from json import loads

import torch

from labs_utils.device import CPU
from labs_utils.profiling.tracker import MemoryTracker
from labs_utils.run import Run
from labs_utils.timeline import Timeline
from labs_utils.training.step import TrainingStep
from labs_utils.training.tracked import warm_up, watch_optimizer, watch_parts


def draw_width(rng) -> int:
    """A hidden size."""
    return 32 * int(rng.integers(2, 5))


def small_model(width: int, layers: int, vocab_size: int) -> dict[str, int]:
    """A Llama's sizes."""
    sizes = {"hidden_size": width, "intermediate_size": 3 * width, "num_hidden_layers": layers}
    return {**sizes, "num_attention_heads": 4, "vocab_size": vocab_size}


@cache
def tracked_micro_steps(run_json: str) -> Timeline:
    """A run's step on this CPU: its micro-steps are the phases "0", "1", and so on, and "optimizer" comes last."""
    run, tracker = Run.parse(loads(run_json)), MemoryTracker()
    with torch.enable_grad(), tracker:  # a student's code may have turned gradients off
        step = TrainingStep(run, "cpu")
        watch_parts(tracker, step)
        warm_up(step, tracker, CPU, 1)
        watch_optimizer(tracker, step)
        for number in range(run.grad_accum):
            step.micro_step(lambda phase, number=number: tracker.phase(str(number)))
        tracker.phase("optimizer")
        step.optimizer_step()
        tracker.phase("after")
    return tracker.timeline
