"""How far `estimate` and `dry_run` are from what was recorded, group by group, beside public calculators.

No constant here or in the estimate was fitted to a recording: every term is a tensor, or a rule of a library that is
named where it stands. So there is nothing to leave out and fit again; an error is a term that is missing. Seconds come
from rates that benchmarks of their own have measured.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from labs_utils.answer import Answer
from labs_utils.answers.estimate import estimate
from labs_utils.device import Device, find_device
from labs_utils.recordings import recorded
from labs_utils.run import Run
from labs_utils.time_model.step import step_seconds

GROUPED_BY = (
    "engine", "zero_stage", "world_size", "offload", "attention", "checkpointing", "precision", "optimizer",
    "layer_kernels", "loss_kernel", "padded",
)  # fmt: skip

STEP_TIME = "step time"


@dataclass(frozen=True)
class Errors:
    """Relative errors of one method in one group: how many, their median and largest size, in per cent."""

    count: int
    median_percent: float
    largest_percent: float

    @classmethod
    def of(cls, errors: Iterable[float | None]) -> Errors | None:
        sizes = [100 * abs(error) for error in errors if error is not None]
        return cls(len(sizes), statistics.median(sizes), max(sizes)) if sizes else None


def methods(with_dry_run: bool) -> dict[str, Callable[[Run, str], int | None]]:
    """Peak bytes of a run on a device, by each method that `estimate` is compared with; None: it has no answer."""
    ours = {}
    if with_dry_run:
        from labs_utils.answers.dry_run import dry_run

        ours["dry run"] = lambda run, device: dry_run(run, device).peak_bytes
    return ours | {"accelerate": accelerate_says, "DeepSpeed": deepspeed_says}


def errors_by_group(device: Device, with_dry_run: bool, progress=lambda rows: rows) -> dict[str, dict[str, Errors]]:
    """For "all" and for each value of each field in `GROUPED_BY`: a method's errors over the device's recorded rows."""
    rows = [answer for answer in recorded() if answer.device == device.name and answer.outcome == "ok"]
    asked = methods(with_dry_run)
    errors = [(row, errors_of(row, asked)) for row in progress(rows)]
    groups = {"all": errors}
    for field in GROUPED_BY:
        for value in dict.fromkeys(getattr(row.run, field) for row in rows):
            groups[f"{field} = {value}"] = [pair for pair in errors if getattr(pair[0].run, field) == value]
    names = ("estimate", *asked, STEP_TIME)
    return {
        group: {name: Errors.of(of_row[name] for _, of_row in pairs) for name in names}
        for group, pairs in groups.items()
    }


def errors_of(row: Answer, asked: dict[str, Callable[[Run, str], int | None]]) -> dict[str, float | None]:
    """One row's errors: of the peak by each method, and of the seconds a step by the estimate."""
    guess = estimate(row.run, row.device)
    asked = {"estimate": lambda run, device: guess.peak_bytes, **asked}
    peaks = {name: error(row, ask) for name, ask in asked.items()}
    seconds = seconds_with_threads(row, guess)
    return {**peaks, STEP_TIME: seconds / row.step_seconds - 1 if seconds and row.step_seconds else None}


def seconds_with_threads(row: Answer, guess: Answer) -> float | None:
    """The estimated seconds of a step; of a rank that offloads, with as many threads as it had when it was recorded."""
    if row.run.offload == "none":
        return guess.step_seconds
    terms = step_seconds(row.run, find_device(row.device), row.provenance["threads_per_rank"])
    return sum(terms.values()) if terms else None


def error(row: Answer, ask: Callable[[Run, str], int | None]) -> float | None:
    """How much too large a method's peak is, as a share of the recorded one; None where it has no answer."""
    peak_bytes = ask(row.run, row.device)
    return None if peak_bytes is None else peak_bytes / row.peak_bytes - 1


def accelerate_says(run: Run, device: str) -> int:
    """The largest of the four sizes that `accelerate estimate-memory` lists for training with Adam, batch size 1."""
    from accelerate.commands.estimate import estimate_training_usage

    precision = "float32" if run.precision == "fp32" else "bfloat16"
    return max(estimate_training_usage(4 * run.model.parameters, precision).values())


def deepspeed_says(run: Run, device: str) -> int:
    """DeepSpeed's `estimate_zero2_model_states_mem_needs` for one GPU without offload."""
    from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs

    return estimate_zero2_model_states_mem_needs(run.model.parameters, cpu_offload=False)[1]
