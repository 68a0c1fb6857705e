"""What ranks do together, and what the host takes for steps so small that the GPU waits for it.

Parts of `labs doctor --full`: collectives, copies and Adam on all ranks at once, and small steps.
"""

from __future__ import annotations

from collections.abc import Iterator

from labs_utils.device import usable_cores
from labs_utils.doctor.machine_rates import Rate, Timing
from labs_utils.profiling.timing import Spread, time_calls
from labs_utils.run import Run
from labs_utils.time_model.subjects import FORWARD_ALONE, OF_ALL_RANKS, engine_name, host_runs, host_step

HOST_PARAMETERS = 2**27
LIMIT_SECONDS = 300
LINK_BYTES = [2**power for power in (12, 16, 20, 22, 24, 26, 28, 30)]
STAGE_3_KEYS = {
    "stage3_max_reuse_distance": 0,
    "stage3_prefetch_bucket_size": 3 * 10**6,
    "reduce_bucket_size": 5 * 10**7,
}


def host_of_all_ranks(ranks: int) -> Iterator[Rate]:
    """Copies, Adam and passes over memory on all ranks at once, which share the host; with fewer and fewer threads."""
    threads = max(1, usable_cores() // ranks)
    fewer = sorted({threads, *(2**power for power in range(threads.bit_length()))}, reverse=True)
    for slowest in slowest_of("host", {"parameters": HOST_PARAMETERS, "threads": fewer}, ranks):
        subject, seconds = OF_ALL_RANKS + slowest.pop("subject"), Spread(**slowest.pop("seconds"))
        handled = "bytes" if "bytes" in slowest else "parameters"
        shape = {**slowest, "ranks": ranks}
        yield Rate(subject=subject, shape=shape, per_second=seconds.rate(slowest[handled]), unit=f"{handled}/s")


def slowest_of(worker: str, argument: dict, ranks: int) -> Iterator[dict]:
    """Each time that a worker measures, as plain data: that of the slowest rank."""
    from labs_utils.workers.launch import launch

    of_ranks = launch(f"labs_utils.workers.{worker}", argument, ranks, LIMIT_SECONDS, show=quietly)
    for same in zip(*of_ranks, strict=True):
        yield max(same, key=lambda each: each["seconds"]["median"])


def collectives(ranks: int) -> Iterator[Timing]:
    """Collectives between all GPUs, by size."""
    for slowest in slowest_of("links", {"bytes": LINK_BYTES}, ranks):
        shape = {"bytes": slowest["bytes"], "ranks": ranks}
        yield Timing(subject=slowest["collective"], shape=shape, seconds=slowest["seconds"])


def quietly(text: str) -> None:
    """Show no progress: standard output is the report's."""


def host_timing(name: str, run: Run, seconds: Spread) -> Timing:
    """A step's time under the name that `labs_utils.time_model.subjects` looks for."""
    shape = {"layers": run.model.num_hidden_layers, "ranks": run.world_size}
    return Timing(subject=host_step(engine_name(run.engine, run.zero_stage), name), shape=shape, seconds=seconds)


def host_alone(device: str = "cuda") -> Iterator[Timing]:
    """Plain PyTorch: the whole step, and its forward alone."""
    from labs_utils.training.step import TrainingStep

    for name, run in host_runs().items():
        step = TrainingStep(run, device)
        yield host_timing(name, run, time_calls(step, device, warmups=3))
        if not name:
            forward = time_calls(lambda step=step: step.model(**step.batch, use_cache=False), device, warmups=3)
            yield host_timing(FORWARD_ALONE, run, forward)


def host_of_engines(ranks: int) -> Iterator[Timing]:
    """DDP and DeepSpeed's stages, in processes of their own; recomputing tells only where modules have hooks."""
    from labs_utils.workers.launch import launch
    from labs_utils.workers.rank_report import RankReport

    runs = list(host_runs(engine="ddp", world_size=ranks).items())
    for stage in range(4):
        keys = {"zero": STAGE_3_KEYS} if stage == 3 else {}
        fields = {"engine": "deepspeed", "precision": "bf16-master", "zero_stage": stage, "world_size": ranks}
        runs += host_runs(**fields, **keys).items()
    runs = [
        (name, run)
        for name, run in runs
        if run.checkpointing == "none" or (run.zero_stage, run.checkpointing) == (3, "full")
    ]
    argument = {"runs": [run.to_dict() for _, run in runs]}
    of_rank_0 = launch("labs_utils.workers.zero", argument, ranks, 120, show=quietly)[0]
    for (name, run), report in zip(runs, map(RankReport.model_validate, of_rank_0), strict=True):
        p20, p80 = (report.answer.provenance[f"step_seconds_{percentile}"] for percentile in ("p20", "p80"))
        yield host_timing(name, run, Spread(median=report.answer.step_seconds, p20=p20, p80=p80))
