"""How answers are printed in a terminal: a row for each answer, and a row for each group of errors."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import starmap

from labs_utils.answer import Answer
from labs_utils.figures.tables import print_table
from labs_utils.run import Run
from labs_utils.units import gib_cell

SHOWN_SHARE = 0.01  # parts smaller than this share of the peak are left out of a table
SAID = {  # what a run's field is called where its value alone wouldn't tell
    "grad_accum": "{} micro-steps", "padded": "padded", "compile": "compiled", "layer_kernels": "{} layers",
    "loss_kernel": "{} loss", "lora_rank": "LoRA rank {}", "kv_len": "cache of {}", "zero_stage": "stage {}",
    "world_size": "{} ranks", "offload": "offload {}",
}  # fmt: skip


def print_answers(answers: list[Answer]) -> None:
    """A row for each answer: the run, the outcome, the peak in GiB, the seconds, and what makes most of the peak."""
    columns = ("run", "device", "outcome", "peak", "step", "made of")
    print_table(columns, map(row, answers), "Peak memory, GiB, and seconds a step", right=(3, 4))


def row(answer: Answer) -> Iterator[str]:
    """The cells of an answer; those at the end are left out where there are no bytes."""
    yield describe(answer.run)
    yield answer.device or ""
    reason = answer.provenance.get("reason")
    yield f"{answer.outcome}: {reason}" if reason else f"{answer.outcome}, {answer.phase}"
    if answer.peak_bytes is None:
        return
    yield gib_cell(answer.peak_bytes)
    yield "" if answer.step_seconds is None else f"{answer.step_seconds:.3g}"
    shown = {part: size for part, size in (answer.parts or {}).items() if size >= SHOWN_SHARE * answer.peak_bytes}
    made_of = [f"{part.replace('_', ' ')} {gib_cell(size)}" for part, size in shown.items()]
    on_host = answer.provenance.get("host_bytes")
    yield ", ".join(made_of + ([f"on the host {gib_cell(on_host)} for each rank"] if on_host else []))


def describe(run: Run) -> str:
    """What sets a run apart: its parameters, its tokens, and every field that isn't the default."""
    changed = {field: value for field, value in run if value != Run.model_fields[field].default}
    named = [field for field in changed if field not in ("model", "micro_batch", "seq_len", "zero")]
    fields = [SAID.get(field, "{}").format(changed[field]) for field in named]
    fields += [f"{key}={value:g}" if type(value) is float else f"{key}={value}" for key, value in run.zero.items()]
    return " ".join([f"{run.model.parameters / 1e6:,.0f}M", f"{run.micro_batch}×{run.seq_len}", *fields])


def print_errors(errors_by_group: dict[str, dict]) -> None:
    """A row for each group of recorded runs, with the errors of each method (`labs_utils.answers.accuracy`)."""
    title = "Error against recorded runs, in per cent: median / largest, of the peak and of the estimated step time"
    print_table(("runs with", "runs", *errors_by_group["all"]), starmap(error_row, errors_by_group.items()), title)


def error_row(group: str, by_method: dict) -> list[str]:
    cells = [worded_errors(name, errors) for name, errors in by_method.items()]
    return [group, str(max(errors.count for errors in by_method.values() if errors)), *cells]


def worded_errors(name: str, errors) -> str:
    """Median and largest error in per cent, or nothing where a method answered no run."""
    from labs_utils.answers.accuracy import STEP_TIME

    if errors is None:
        return ""
    if name == STEP_TIME:
        return f"{errors.median_percent:.0f} / {errors.largest_percent:.0f}"
    both = errors.median_percent, errors.largest_percent
    return " / ".join(f"{percent:.2g}" if percent < 10 else f"{percent:,.0f}" for percent in both)
