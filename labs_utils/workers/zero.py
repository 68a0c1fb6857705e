"""One rank of runs on several: trains a few steps under DDP or DeepSpeed, and reports what it held, sent and took.

torchrun --nproc-per-node 2 -m labs_utils.workers.zero run.json
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import torch
import torch.distributed as dist

from labs_utils.answer import PHASES
from labs_utils.coverage import why_not_distributed
from labs_utils.profiling.collectives import CommunicationCounter
from labs_utils.profiling.deepspeed_tensors import (
    PART,
    held_bytes,
    held_tensors,
    host_bytes,
    host_tensors,
    memory_of_host,
    release,
)
from labs_utils.profiling.phase_clock import ASIDE
from labs_utils.profiling.step_clock import StepClock
from labs_utils.profiling.tracker import host_memory
from labs_utils.run import Run, RunError
from labs_utils.training.cpu_adam import why_no_cpu_adam
from labs_utils.training.distributed import build_step
from labs_utils.training.step import TrainingStep
from labs_utils.workers.one_run import TIMED_STEPS, WARM_STEPS, on_cpu, on_gpu
from labs_utils.workers.rank import Progress, keep, rank_device, serve

FEWEST_TIMED, TIMED_SECONDS = 2, 15
ALLOCATING = ("THP_MEM_ALLOC_ENABLE", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")  # what changes host memory


def work(argument: dict, progress: Progress) -> list[dict]:
    """Train the runs in `argument["runs"]` one after another, or the one that `argument` is.

    `argument["steps"]`, if given, says how many losses are wanted. `argument["measured"]` says of how many runs, from
    the first, peak and time are measured, which takes the longest; if it isn't given, of all.

    Returns:
        For each run `answer`: an `Answer` as measured on this rank (None if it isn't measured); `losses` of the first
        steps, each the mean of its micro-steps; by kind and device, `held_after_forward_bytes`, `held_bytes` (after
        backward) and with accumulation `held_between_bytes` (before the last micro-step); of the same step
        `communicated` by collective, and `split_seconds`, `copies` and `moved_bytes` (`StepClock`); `threads_per_rank`,
        `set_up_seconds` and on a GPU `set_up_peak_bytes`; with offload `host_bytes`, `host_memory` by kind, and which
        `cpu_adam` was used.

    Raises:
        RunError: if a run is for another number of ranks.
    """
    runs = [this_run(run) for run in argument.get("runs", [argument])]
    measured, found = argument.get("measured", len(runs)), []
    for number, run in enumerate(runs):
        steps = max(argument.get("steps", 0), first_steps(run))
        found.append(train(run, steps, number < measured, progress))
        keep(found[-1], progress)
        of_slowest(0.0)  # so that none fails in the next run before all have kept this one
    return found


def first_steps(run: Run) -> int:
    """Steps before memory and time are measured; of the last one communication is counted."""
    return WARM_STEPS + (run.offload == "none")


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
    device = rank_device()
    compiled, note = cpu_adam(run, device, progress)
    progress("building the model")
    found = circumstances(device)
    step, took = set_up(run, device, compiled)
    found |= took | observe(step, steps, progress)
    if run.offload != "none":
        on_host = sum(host_bytes(step).values())
        found |= {"cpu_adam": note, "host_bytes": on_host, "host_memory": memory_of_host(step)}
    answer = measured(step, found, progress) if measure else None
    release(step)
    return {"answer": answer, **found}


def set_up(run: Run, device: torch.device, compiled: bool) -> tuple[TrainingStep, dict]:
    """The step, and what building it took: `set_up_seconds`, and on a GPU `set_up_peak_bytes`."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    begin = time.perf_counter()
    step = build_step(run, device, compiled)
    took = {"set_up_seconds": time.perf_counter() - begin}
    if device.type == "cuda":
        took["set_up_peak_bytes"] = torch.cuda.max_memory_allocated()
    return step, took


def circumstances(device: torch.device) -> dict:
    """What a run's memory and time depend on besides: threads, what others have left, how memory is allocated."""
    left = torch.cuda.memory_allocated() if device.type == "cuda" else 0
    told = {name: os.environ[name] for name in ALLOCATING if name in os.environ}
    found = {"threads_per_rank": torch.get_num_threads(), "left_by_others_bytes": left}
    return found | ({"environment": told} if told else {})


def measured(step, found: dict, progress: Progress) -> dict:
    """The answer, measured; `found["split_seconds"]` gets phases of a step that nothing watches, if there are any."""
    progress("measuring memory and time")
    if step.device.type == "cuda":
        last_seconds = sum(found["split_seconds"][phase] for phase in PHASES)
        answer = on_gpu(step.run, step, 0, timed_steps(last_seconds))
    else:
        answer = on_cpu(step.run, step, 0, partial(watch_held, step=step))
    found["split_seconds"] |= answer.provenance.pop("phase_seconds", {})
    return answer.to_dict()


def timed_steps(step_seconds: float) -> int:
    """As many as all ranks have time for, by the slowest one's last step."""
    return max(FEWEST_TIMED, min(TIMED_STEPS, int(TIMED_SECONDS / of_slowest(step_seconds))))


def of_slowest(seconds: float) -> float:
    """The largest of all ranks' numbers; none goes on before all are here."""
    slowest = torch.tensor(seconds, device=rank_device())
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return slowest.item()


def cpu_adam(run: Run, device: torch.device, progress: Progress) -> tuple[bool, str]:
    """Whether DeepSpeed's CPU Adam is used for a run that offloads, and a word about that; on a CPU in `bf16` only.

    Raises:
        RunError: in `bf16`, if it can't be compiled: DeepSpeed has no other Adam for master weights in bf16.
    """
    is_needed = run.precision == "bf16"
    if run.offload == "none" or run.optimizer != "adamw" or not (is_needed or device.type == "cuda"):
        return False, "PyTorch's AdamW"
    progress("compiling DeepSpeed's CPU Adam, about a minute if it isn't there yet")
    reason = why_no_cpu_adam()
    if reason and is_needed:
        raise RunError(f"offload in precision 'bf16' needs DeepSpeed's CPU Adam, which couldn't be compiled: {reason}")
    return not reason, f"PyTorch's AdamW: DeepSpeed's couldn't be compiled ({reason})" if reason else "DeepSpeedCPUAdam"


def observe(step, steps: int, progress: Progress) -> dict:
    """Train so many steps; of the last one keep what was held at three moments, communicated, copied, and its parts."""
    micro_losses, held, counter = [], {}, CommunicationCounter()
    each = step.run.grad_accum
    hook = step.model.register_forward_hook(lambda model, inputs, output: micro_losses.append(output.loss.detach()))

    def on_phase(name: str) -> None:
        clock.begin(ASIDE)
        if name == "optimizer":
            held["held_bytes"] = held_bytes(step)
        elif name == "backward":
            held["held_after_forward_bytes"] = held_bytes(step)
        elif name == "forward" and len(micro_losses) % each == each - 1 and each > 1:
            held["held_between_bytes"] = held_bytes(step)
        clock.begin(name)

    for number in range(1, steps):
        progress(f"step {number} of {steps}")
        step()
    progress(f"step {steps} of {steps}")
    clock = StepClock(step.device, host_tensors(step))
    with host_work_timed(clock, step), counter, clock:
        step(on_phase)
    clock.end()
    hook.remove()
    losses = [loss.item() for loss in micro_losses]
    losses = [sum(losses[first : first + each]) / each for first in range(0, len(losses), each)]
    told = {"losses": losses, **held, "communicated": counter.found}
    return told | {"split_seconds": clock.split_seconds(), "copies": clock.copies, "moved_bytes": clock.moved_bytes()}


@contextmanager
def host_work_timed(clock: StepClock, step) -> Iterator[None]:
    """Time what an offloaded optimizer does on the host."""
    zero = getattr(step, "zero_optimizer", None)
    with ExitStack() as watched:
        for owner, method, name in ((step.optimizer, "step", "cpu_adam"), (zero, "unscale_and_clip_grads", "clipping")):
            if step.run.offload != "none" and hasattr(owner, method):
                watched.enter_context(clock.watching(owner, method, name))
        yield


def watch_held(tracker, step) -> None:
    """Name the tensors that DeepSpeed holds now; those that it has only in backward, as their gradients arrive.

    What is offloaded counts as the host's.
    """
    with host_memory():
        tracker.watch("optimizer_states", host_tensors(step))
    for kind, tensors in held_tensors(step).items():
        tracker.watch(PART[kind], tensors)


if __name__ == "__main__":
    serve(work)
