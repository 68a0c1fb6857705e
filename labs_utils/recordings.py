"""`recall`: what was recorded on reference GPUs, with where and when, from `data/measurements/`."""

from __future__ import annotations

import json
import warnings
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, NonNegativeFloat, ValidationError

from labs_utils.answer import Answer
from labs_utils.device import DATA, Device
from labs_utils.run import Run

RECORDED = DATA / "measurements" / "runs.jsonl"
BENCHMARKS = DATA / "measurements" / "benchmarks.jsonl"


class RecordedLineWarning(UserWarning):
    """A line of a recording that can't be read: file, line and field."""


def recall(run: Run, device: Device | str | None = None) -> list[Answer]:
    """The recorded answers to exactly this run, on one device or on all; may be empty, is never interpolated."""
    name = device.name if isinstance(device, Device) else device
    return [answer for answer in recorded() if answer.run == run and name in (None, answer.device)]


class Benchmark(BaseModel, frozen=True, strict=True, extra="forbid"):
    """One line of `benchmarks.jsonl`: a rate or a time, its spread, and where and when it was measured."""

    subject: str
    shape: dict[str, int] | None
    metric: str
    value: dict[str, NonNegativeFloat]
    unit: str
    provenance: dict[str, Any]


def benchmarks(device: Device | str) -> list[Benchmark]:
    """What was recorded on a device besides training runs, such as bandwidths and matrix products."""
    name = device.name if isinstance(device, Device) else device
    return [line for line in read_lines(BENCHMARKS, Benchmark) if line.provenance.get("device") == name]


@cache
def recorded(path: Path = RECORDED) -> tuple[Answer, ...]:
    """Every recorded answer, in the file's order. A line that can't be read is left out, with one warning."""
    return tuple(answer.model_copy(update={"method": "recall"}) for answer in read_lines(path, Answer))


def read_lines(path: Path, model: type[BaseModel]) -> list:
    """The lines of a JSONL file as records of `model`; one that can't be read is left out, with one warning."""
    records = []
    for number, line in enumerate(path.read_bytes().splitlines() if path.exists() else [], start=1):
        try:
            records.append(model.model_validate(json.loads(line)))
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(str(part) for part in first["loc"]) or "the line"
            _warn(path, number, f"{field}: {first['msg'].removeprefix('Value error, ')}")
        except ValueError as error:
            _warn(path, number, f"not a JSON object ({error})")
    return records


def _warn(path: Path, number: int, problem: str) -> None:
    warnings.warn(f"{path.name}, line {number} is left out: {problem}", RecordedLineWarning, stacklevel=4)
