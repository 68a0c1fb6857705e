"""`observe`: train a few steps of DDP or DeepSpeed, and look at the last one from all sides."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

from labs_utils.profiling.collectives import CommunicationCounter
from labs_utils.profiling.deepspeed_tensors import held_bytes, host_tensors
from labs_utils.profiling.phase_clock import ASIDE
from labs_utils.profiling.step_clock import StepClock
from labs_utils.workers.rank import Progress

HELD_BEFORE = {
    "forward": "held_between_bytes", "backward": "held_after_forward_bytes", "optimizer": "held_bytes",
}  # fmt: skip


def observe(step, steps: int, progress: Progress) -> dict:
    """Train so many steps, one or more: fields of a `RankReport`, from `losses` to `moved_bytes`."""
    with micro_losses(step) as losses:
        for number in range(1, steps):
            progress(f"step {number} of {steps}")
            step()
        progress(f"step {steps} of {steps}")
        fields = observed_step(step)
    return {"losses": step_losses(losses, step.run.grad_accum), **fields}


def observed_step(step) -> dict:
    """Train one step; what was held at three moments of it, communicated and copied, and its seconds."""
    clock, counter, held = StepClock(step.device, host_tensors(step)), CommunicationCounter(), {}

    def on_phase(phase: str) -> None:
        clock.begin(ASIDE)
        if phase != "forward" or step.run.grad_accum > 1:
            held[HELD_BEFORE[phase]] = held_bytes(step)  # of the last micro-step in the end
        clock.begin(phase)

    with host_work_timed(clock, step), counter, clock:
        step(on_phase)
    clock.end()
    seconds = {"split_seconds": clock.split_seconds()}
    return {
        **held,
        "communicated": counter.counts,
        **seconds,
        "copies": clock.copies,
        "moved_bytes": clock.moved_bytes(),
    }


@contextmanager
def micro_losses(step) -> Iterator[list[torch.Tensor]]:
    """A list that gets the loss of each micro-step."""
    losses: list[torch.Tensor] = []
    hook = step.model.register_forward_hook(lambda model, inputs, output: losses.append(output.loss.detach()))
    try:
        yield losses
    finally:
        hook.remove()


def step_losses(losses: list[torch.Tensor], grad_accum: int) -> list[float]:
    """The mean over the micro-steps of each step.

    >>> step_losses([torch.tensor(1.0), torch.tensor(3.0), torch.tensor(5.0), torch.tensor(5.0)], grad_accum=2)
    [2.0, 5.0]
    """
    values = [loss.item() for loss in losses]
    return [sum(values[first : first + grad_accum]) / grad_accum for first in range(0, len(values), grad_accum)]


@contextmanager
def host_work_timed(clock: StepClock, step) -> Iterator[None]:
    """Time what an offloaded optimizer does on the host."""
    zero = getattr(step, "zero_optimizer", None)
    with ExitStack() as watched:
        for owner, method, name in ((step.optimizer, "step", "cpu_adam"), (zero, "unscale_and_clip_grads", "clipping")):
            if step.run.offload != "none" and hasattr(owner, method):
                watched.enter_context(clock.watching(owner, method, name))
        yield
