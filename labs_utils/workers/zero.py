"""One rank of runs on several: trains a few steps under DDP or DeepSpeed, and reports what it held, sent and took.

torchrun --nproc-per-node 2 -m labs_utils.workers.zero run.json
"""

from __future__ import annotations

import os
from functools import partial

from labs_utils.communication import CommunicationCounter
from labs_utils.distributed import build_step
from labs_utils.held import PART, held_bytes, held_tensors
from labs_utils.run import Run, RunError
from labs_utils.workers.measuring import WARM_STEPS, on_cpu, on_gpu
from labs_utils.workers.rank import Progress, rank_device, serve
from labs_utils.zero_config import why_not_distributed


def work(argument: dict, progress: Progress) -> list[dict]:
    """Train the runs in `argument["runs"]` one after another, or the one that `argument` is.

    `argument["steps"]`, if given, says how many losses are wanted. `argument["measured"]` says of how many runs, from
    the first, peak and time are measured, which takes the longest; if it isn't given, of all.

    Returns:
        For each run `answer`: an `Answer` as measured on this rank (None if it isn't measured); `losses` of the first
        steps, each the mean of its micro-steps; by kind and device, `held_after_forward_bytes`, `held_bytes` (after
        backward) and with accumulation `held_between_bytes` (before the last micro-step); `communicated` in one step by
        collective.

    Raises:
        RunError: if a run is for another number of ranks.
    """
    runs = [this_run(run) for run in argument.get("runs", [argument])]
    steps = max(argument.get("steps", 0), WARM_STEPS + 1)
    measured = argument.get("measured", len(runs))
    return [train(run, steps, number < measured, progress) for number, run in enumerate(runs)]


def this_run(run: dict) -> Run:
    """The run; `world_size` is that of this launch, if it is left out."""
    ranks = int(os.environ.get("WORLD_SIZE", 1))
    run = Run.parse({"world_size": ranks, **run})
    if run.engine == "torch":
        raise RunError("engine 'torch' is for one process; take 'ddp' or 'deepspeed'")
    if reason := why_not_distributed(run):
        raise RunError(reason)
    if run.world_size != ranks:
        raise RunError(f"world_size is {run.world_size}, and {ranks} ranks were started")
    return run


def train(run: Run, steps: int, measure: bool, progress: Progress) -> dict:
    """What one run gives on this rank."""
    progress("building the model")
    step = build_step(run, rank_device())
    observed = observe(step, steps, progress)
    if not measure:
        return {"answer": None, **observed}
    progress("measuring memory and time")
    gpu = step.device.type == "cuda"
    answer = on_gpu(run, step, 0) if gpu else on_cpu(run, step, 0, partial(watch_held, step=step))
    return {"answer": answer.to_dict(), **observed}


def observe(step, steps: int, progress: Progress) -> dict:
    """Train so many steps; of the last one keep what was held at three moments and what was communicated."""
    micro_losses, held, counter = [], {}, CommunicationCounter()
    each = step.run.grad_accum
    hook = step.model.register_forward_hook(lambda model, inputs, output: micro_losses.append(output.loss.item()))

    def on_phase(name: str) -> None:
        if name == "optimizer":
            held["held_bytes"] = held_bytes(step)
        elif name == "backward":
            held["held_after_forward_bytes"] = held_bytes(step)
        elif name == "forward" and len(micro_losses) % each == each - 1 and each > 1:
            held["held_between_bytes"] = held_bytes(step)

    for number in range(1, steps):
        progress(f"step {number} of {steps}")
        step()
    progress(f"step {steps} of {steps}")
    with counter:
        step(on_phase)
    hook.remove()
    losses = [sum(micro_losses[first : first + each]) / each for first in range(0, len(micro_losses), each)]
    return {"losses": losses, **held, "communicated": counter.found}


def watch_held(tracker, step) -> None:
    """Name the tensors that DeepSpeed holds now; those that it has only in backward, as their gradients arrive."""
    for kind, tensors in held_tensors(step).items():
        tracker.watch(PART[kind], tensors)


if __name__ == "__main__":
    serve(work)
