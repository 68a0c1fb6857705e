"""`recall`: runs recorded on reference GPUs, with where and when, from `data/measurements/runs.jsonl`."""

from __future__ import annotations

import json
import warnings
from functools import cache
from pathlib import Path

from pydantic import ValidationError

from labs_utils.answer import Answer
from labs_utils.device import DATA, Device
from labs_utils.run import Run

RECORDED = DATA / "measurements" / "runs.jsonl"


class RecordedLineWarning(UserWarning):
    """A line of a recording that can't be read: file, line and field."""


def recall(run: Run, device: Device | str | None = None) -> list[Answer]:
    """The recorded answers to exactly this run, on one device or on all; may be empty, is never interpolated."""
    name = device.name if isinstance(device, Device) else device
    return [answer for answer in recorded() if answer.run == run and name in (None, answer.device)]


@cache
def recorded(path: Path = RECORDED) -> tuple[Answer, ...]:
    """Every recorded answer, in the file's order. A line that can't be read is left out, with one warning."""
    answers = []
    for number, line in enumerate(path.read_bytes().splitlines() if path.exists() else [], start=1):
        try:
            answers.append(Answer.model_validate(json.loads(line)).model_copy(update={"method": "recall"}))
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(str(part) for part in first["loc"]) or "the line"
            _warn(path, number, f"{field}: {first['msg'].removeprefix('Value error, ')}")
        except ValueError as error:
            _warn(path, number, f"not a JSON object ({error})")
    return tuple(answers)


def _warn(path: Path, number: int, problem: str) -> None:
    warnings.warn(f"{path.name}, line {number} is left out: {problem}", RecordedLineWarning, stacklevel=3)
