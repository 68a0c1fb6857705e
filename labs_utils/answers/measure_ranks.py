"""`measure_ranks`: a live run of DDP or DeepSpeed, one process a rank, and one answer about all of them."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import mean

from labs_utils.answer import Answer
from labs_utils.run import Run
from labs_utils.workers.launch import launch_each
from labs_utils.workers.rank_report import RankReport

WORKER = "labs_utils.workers.zero"


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
