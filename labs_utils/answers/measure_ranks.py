"""`measure_ranks`: a live run of DDP or DeepSpeed, one process a rank, and one answer about all of them."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import mean

from labs_utils.answer import Answer
from labs_utils.answers.estimate import estimate
from labs_utils.device import CPU
from labs_utils.memory_model.host_memory import left_pinned_bytes, offloaded_bytes
from labs_utils.precision import FP32_BYTES, master_bytes
from labs_utils.run import Run
from labs_utils.workers.launch import launch_each
from labs_utils.workers.rank_report import RankReport

WORKER = "labs_utils.workers.zero"
PROCESS_BYTES = 500 * 10**6  # Python, torch, transformers and DeepSpeed, without a model


def measure_ranks(runs: list[Run], limit_seconds: float, threads: int | None = None) -> Iterator[Answer]:
    """Measure runs of as many ranks each, one after another in one launch; answers come as they are made.

    Each is that of the rank with the largest peak. Its `provenance` has besides the `rank_peak_bytes` of all, the
    `losses` of the first steps (means over the ranks) and the other fields of that rank's `RankReport`.

    Raises:
        LaunchError: one sentence with the first real error of a rank.
    """
    argument = {"runs": [run.to_dict() for run in runs]}
    yield from map(of_all, launch_each(WORKER, argument, runs[0].world_size, limit_seconds, threads=threads))


def of_all(ranks: list[dict]) -> Answer:
    """One answer from the reports of all ranks on one run: that of the rank with the largest peak."""
    reports = [RankReport.model_validate(rank) for rank in ranks]
    peaks = [report.answer.peak_bytes for report in reports]
    largest = reports[peaks.index(max(peaks))]
    losses = [mean(of_ranks) for of_ranks in zip(*(report.losses for report in reports), strict=True)]
    provenance = {**largest.answer.provenance, **largest.provenance(), "rank_peak_bytes": peaks, "losses": losses}
    return largest.answer.model_copy(update={"provenance": provenance})


def uses_gpus(run: Run) -> bool:
    """Whether there is a GPU for every rank; else they share the CPU."""
    import torch

    return torch.cuda.device_count() >= run.world_size


def host_bytes_of_ranks(run: Run) -> int:
    """What the ranks need of the host together: with a GPU each, what is offloaded or left of that; else everything.

    It is what `estimate` says, but for buckets that are never filled, and no less than the states; that much is known
    of runs too that aren't estimated.
    """
    gpus = uses_gpus(run)
    guess = estimate(run, None if gpus else CPU)
    estimated = guess.provenance.get("host_bytes", 0) + (0 if gpus else resident_bytes(guess))
    offloaded = run.world_size * offloaded_bytes(run, pins=gpus) if run.offload != "none" else 0
    least = offloaded if gpus else bytes_of_states(run, offloaded)
    left = run.world_size * left_pinned_bytes(run) if gpus else 0
    return max(least, run.world_size * estimated) + left


def resident_bytes(guess: Answer) -> int:
    """What an estimated rank takes on a CPU; of its buckets no more than all gradients together can fill."""
    if guess.peak_bytes is None:
        return PROCESS_BYTES
    empty = max(0, (guess.parts or {}).get("buffers", 0) - FP32_BYTES * guess.run.model.parameters)
    return PROCESS_BYTES + guess.peak_bytes - empty


def bytes_of_states(run: Run, offloaded: int) -> int:
    """On a CPU: 2 bytes a weight, once a rank but at stage 3; then gradients, masters and moments, shared or not.

    The latter are 14 bytes a weight, and 8 in `bf16`.
    """
    parameters, of_states = run.model.parameters, 2 + 3 * master_bytes(run)
    models = 1 if run.zero_stage == 3 else run.world_size
    replicas = 1 if run.zero_stage else run.world_size
    states = 2 * models * parameters + max(replicas * of_states * parameters, offloaded)
    return run.world_size * PROCESS_BYTES + states
