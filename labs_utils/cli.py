"""The `labs` command: questions about runs from the shell, one JSON object a line."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from tqdm import tqdm

from labs_utils.answer import Answer
from labs_utils.device import Device, DeviceError, find_device
from labs_utils.run import Run, RunError, read_runs

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__)

RunsOption = Annotated[Path, typer.Option("--runs", help="A file with one run a line as JSON; - reads standard input.")]
DeviceOption = Annotated[str | None, typer.Option("--device", help="A name in data/gpus.csv; default: this machine.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object a line instead of a table.")]


@app.callback()
def labs() -> None:
    """Predict, measure and explain the memory and time of training large language models."""


@app.command()
def estimate(runs: RunsOption, device: DeviceOption = None, as_json: JsonOption = False) -> None:
    """Estimate each run's memory in milliseconds, without torch or a GPU."""
    from labs_utils.answers.estimate import estimate as answer

    answer_all(answer, runs, device, as_json)


@app.command("dry-run")
def dry_run(runs: RunsOption, device: DeviceOption = None, as_json: JsonOption = False) -> None:
    """Run each run's real code over tensors without memory, in seconds, on any machine."""
    from labs_utils.answers.dry_run import dry_run as answer

    answer_all(answer, runs, device, as_json)


@app.command()
def measure(
    runs: RunsOption,
    out: Annotated[Path | None, typer.Option(help="Append each answer to this file as soon as it is made.")] = None,
    resume: Annotated[bool, typer.Option(help="Leave out runs that --out has an answer to.")] = False,
    threads: Annotated[int | None, typer.Option(min=1, help="Host threads of each rank; default: its cores.")] = None,
    together: Annotated[int, typer.Option(min=1, help="So many runs of as many ranks share a launch.")] = 1,
    limit: Annotated[float, typer.Option(min=1, help="Seconds that a launch of ranks may take.")] = 600,
    as_json: JsonOption = False,
) -> None:
    """Run each run on this machine, one process each: peak bytes by phase, and seconds a step."""
    from labs_utils.answers.measure import Settings, measure_to_file

    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that workers are stopped
    if resume and out is None:
        fail("--resume needs --out, the file to go on with")
    good, bad_lines = read_all(runs)
    try:
        measured = measure_to_file(good, out, resume, Settings(threads, together, limit))
        answers = list(tqdm(measured, total=len(good), unit="run", disable=None))
    except OSError as error:
        fail(f"{error.filename} can't be written: {error.strerror.lower()}")
    show(answers, as_json)
    finish(answers or good, bad_lines, runs)


@app.command()
def doctor(
    full: Annotated[bool, typer.Option("--full", help="Measure what a step's time is made of: some minutes.")] = False,
    only: Annotated[str, typer.Option(metavar="TEXT", help="With --full: parts whose name contains it.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Say what this machine can do: rates measured, packages tried, and what each lab shows on it."""
    from labs_utils.doctor.examine import doctor as examined
    from labs_utils.doctor.findings import print_tables
    from labs_utils.doctor.operator_rates import measured_in_full

    report = examined(measure_in_full=partial(measured_in_full, only=only)) if full or only else examined()
    typer.echo(report.model_dump_json()) if as_json else print_tables(report)


@app.command()
def accuracy(
    device: DeviceOption = "H200",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Dry-run every recorded run too: some minutes.")] = False,
) -> None:
    """How far estimates are from what was recorded on a GPU, beside what public calculators say."""
    from labs_utils.answer_table import print_errors
    from labs_utils.answers.accuracy import errors_by_group

    try:
        errors = errors_by_group(find_device(device), dry_run, partial(tqdm, unit="run", leave=False, disable=None))
    except DeviceError as error:
        fail(str(error))
    if errors["all"]["estimate"] is None:
        fail(f"nothing was recorded on {device}; data/measurements/runs.jsonl says what was")
    print_errors(errors)


@app.command()
def handouts(
    notebooks: list[Path],
    out: Annotated[Path | None, typer.Option(help="Folder of the pages; default: handouts or handouts-staff.")] = None,
    staff: Annotated[bool, typer.Option("--staff", help="Fill in the exercises with the course's solutions.")] = False,
):
    """Execute notebooks (files or folders) and write each as one self-contained HTML page, and an index."""
    from labs_utils.pages.handouts import HandoutError, write_handouts

    try:
        for page in write_handouts(notebooks, out or Path("handouts-staff" if staff else "handouts"), staff):
            typer.echo(f"wrote {page}")
    except HandoutError as error:
        fail(str(error), code=1)


def answer_all(ask: Callable[[Run, Device], Answer], runs: Path, device_name: str | None, as_json: bool) -> None:
    """Answer the good lines in order and complain about the bad ones; exits with 2 if there was one, or no run."""
    try:
        device = find_device(device_name)
    except DeviceError as error:
        fail(str(error))
    good, bad_lines = read_all(runs)
    answers = [ask(run, device) for run in tqdm(good, unit="run", leave=False, disable=None)]
    show(answers, as_json)
    finish(answers, bad_lines, runs)


def read_all(runs: Path) -> tuple[list[Run], int]:
    """The runs of a file, and how many lines were none: each of those is complained about."""
    lines = [run for _, run in read_runs(read_lines(runs), source_name(runs))]
    good = [run for run in lines if isinstance(run, Run)]
    for error in (run for run in lines if isinstance(run, RunError)):
        typer.echo(f"labs: {error}", err=True)
    return good, len(lines) - len(good)


def show(answers: list[Answer], as_json: bool) -> None:
    if as_json:
        for answer in answers:
            typer.echo(json.dumps(answer.to_dict()))
    elif answers:
        from labs_utils.answer_table import print_answers

        print_answers(answers)


def finish(answers: list, bad_lines: int, runs: Path) -> None:
    """Exit with 2 if a line was bad or there was no run at all."""
    if not answers and not bad_lines:
        fail(f"{source_name(runs)} holds no run; write one JSON object a line")
    if bad_lines:
        raise typer.Exit(2)


def source_name(runs: Path) -> str:
    return "standard input" if str(runs) == "-" else str(runs)


def read_lines(runs: Path) -> list[bytes]:
    """The lines of a file, or of standard input; exits with 2 where it can't be read."""
    if str(runs) == "-" and sys.stdin is None:
        fail("standard input is closed; give a file, or pipe runs in")
    try:
        content = sys.stdin.buffer.read() if str(runs) == "-" else runs.read_bytes()
    except OSError as error:
        fail(f"{runs} can't be read: {error.strerror.lower()}")
    if b"\0" in content:
        fail(f"{source_name(runs)} is a binary file; a runs file holds UTF-8 text, one JSON object a line")
    return content.splitlines()


def fail(sentence: str, code: int = 2) -> NoReturn:
    typer.echo(f"labs: {sentence}", err=True)
    raise typer.Exit(code)


if __name__ == "__main__":
    app()
