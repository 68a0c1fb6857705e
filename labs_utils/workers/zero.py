"""One rank of runs on several: trains a few steps under DDP or DeepSpeed, and reports what it held, sent and took.

torchrun --nproc-per-node 2 -m labs_utils.workers.zero run.json
"""

from __future__ import annotations

import os
from functools import partial

import torch
import torch.distributed as dist

from labs_utils.answer import PHASES, Answer
from labs_utils.coverage import why_not_built
from labs_utils.profiling.deepspeed_tensors import PART_OF, held_tensors, host_memory_bytes, host_tensors, release
from labs_utils.profiling.tracker import host_memory
from labs_utils.run import Run, RunError
from labs_utils.training.cpu_adam import why_no_cpu_adam
from labs_utils.training.distributed import build_step
from labs_utils.training.step import TrainingStep
from labs_utils.workers.observed_step import observe
from labs_utils.workers.peak_and_time import TIMED_STEPS, WARM_STEPS, measure_on_cpu, measure_on_gpu
from labs_utils.workers.rank import Progress, keep, rank_device, serve
from labs_utils.workers.rank_report import RankReport

FEWEST_TIMED, TIMED_SECONDS = 2, 15
ALLOCATING = ("THP_MEM_ALLOC_ENABLE", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")  # what changes host memory


def work(argument: dict, progress: Progress) -> list[dict]:
    """Train the runs in `argument["runs"]` one after another, or the one that `argument` is.

    `argument["steps"]`, if given, says how many losses are wanted. `argument["measured"]` says of how many runs, from
    the first, peak and time are measured, which takes the longest; if it isn't given, of all. With
    `argument["on_cpu"]` all share the CPU, whatever GPUs there are: then small runs count the same bytes everywhere.

    Returns:
        For each run a `RankReport` as plain data.

    Raises:
        RunError: if a run is for another number of ranks.
    """
    if argument.get("on_cpu"):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # before anything has looked for a GPU
    runs = [this_run(run) for run in argument.get("runs", [argument])]
    measured_runs, reports = argument.get("measured", len(runs)), []
    for number, run in enumerate(runs):
        steps = max(argument.get("steps", 0), first_steps(run))
        reports.append(train(run, steps, number < measured_runs, progress).to_dict())
        keep(reports[-1], progress)
        of_slowest(0.0)  # so that none fails in the next run before all have kept this one
    return reports


def first_steps(run: Run) -> int:
    """Steps before memory and time are measured; of the last one communication is counted."""
    return WARM_STEPS + (run.offload == "none")


def this_run(run: dict) -> Run:
    """The run; `world_size` is that of this launch, if it is left out."""
    ranks = int(os.environ.get("WORLD_SIZE", 1))
    run = Run.parse({"world_size": ranks, **run})
    if run.engine == "torch":
        raise RunError("engine 'torch' is for one process; take 'ddp' or 'deepspeed'")
    if reason := why_not_built(run):
        raise RunError(reason)
    if run.world_size != ranks:
        raise RunError(f"world_size is {run.world_size}, and {ranks} ranks were started")
    return run


def train(run: Run, steps: int, is_measured: bool, progress: Progress) -> RankReport:
    """What one run gives on this rank."""
    device = rank_device()
    is_compiled, adam = choose_cpu_adam(run, device, progress)
    progress("building the model")
    step, set_up_peak_bytes = set_up(run, device, is_compiled)
    fields = observe(step, steps, progress)
    if run.offload != "none":
        on_host = host_memory_bytes(step)
        fields |= {"cpu_adam": adam, "host_bytes": on_host["pinned"] + on_host["pageable"], "host_memory": on_host}
    answer = measure_step(step, fields["split_seconds"], progress) if is_measured else None
    release(step)
    return RankReport(
        answer=answer,
        threads_per_rank=torch.get_num_threads(),
        environment={name: os.environ[name] for name in ALLOCATING if name in os.environ} or None,
        set_up_peak_bytes=set_up_peak_bytes,
        **fields,
    )


def set_up(run: Run, device: torch.device, is_compiled: bool) -> tuple[TrainingStep, int | None]:
    """The step, and the peak of the GPU's memory while it was built (None on a CPU)."""
    if device.type != "cuda":
        return build_step(run, device, is_compiled), None
    torch.cuda.reset_peak_memory_stats()
    step = build_step(run, device, is_compiled)
    return step, torch.cuda.max_memory_allocated()


def measure_step(step: TrainingStep, split_seconds: dict[str, float], progress: Progress) -> Answer:
    """Peak and time; `split_seconds` gets the phases of a step that nothing watches, where there is one."""
    progress("measuring memory and time")
    if step.device.type != "cuda":
        return measure_on_cpu(step, 0, partial(watch_held, step=step))
    last_seconds = sum(split_seconds[phase] for phase in PHASES)
    answer = measure_on_gpu(step, 0, timed_steps(last_seconds))
    split_seconds.update(answer.provenance.pop("phase_seconds"))
    return answer


def timed_steps(step_seconds: float) -> int:
    """As many as all ranks have time for, by the slowest one's last step."""
    return max(FEWEST_TIMED, min(TIMED_STEPS, int(TIMED_SECONDS / of_slowest(step_seconds))))


def of_slowest(seconds: float) -> float:
    """The largest of all ranks' numbers; none goes on before all are here."""
    slowest = torch.tensor(seconds, device=rank_device())
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return slowest.item()


def choose_cpu_adam(run: Run, device: torch.device, progress: Progress) -> tuple[bool, str]:
    """Whether DeepSpeed's CPU Adam is used for a run that offloads, and its name; on a CPU it is in `bf16` only.

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


def watch_held(tracker, step) -> None:
    """Name the tensors that DeepSpeed holds now; those that it has only in backward, as their gradients arrive.

    What is offloaded counts as the host's.
    """
    with host_memory():
        tracker.watch("optimizer_states", host_tensors(step))
    for kind, tensors in held_tensors(step).items():
        tracker.watch(PART_OF[kind], tensors)


if __name__ == "__main__":
    serve(work)
