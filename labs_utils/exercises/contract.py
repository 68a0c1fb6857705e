"""The contract of an exercise, what trying and marking an answer gives, and where exercises are found."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, NamedTuple

from numpy.random import Generator

PACKAGE = "labs_utils.exercises"
MEMORY_BYTES = 512 * 2**20  # that a student's code may take


class Mark(NamedTuple):
    """How good an answer is: a score in [0, 1], one sentence for the student, and the name of a mistake, if known."""

    score: float
    sentence: str
    cause: str | None = None


@dataclass(frozen=True)
class Exercise:
    """One function that a student writes, and the machine that says whether it is right.

    `id` is "labNN.name"; the student's function is called `name`. `draw(rng)` makes a case, `call(fn, case)` an answer,
    `truth(case)` what the answer should be, and `compare(case, answer, truth)` a `Mark`.
    Cases, answers and truths are plain data (`labs_utils.exercises.plain`). Only `call` runs beside the student's code:
    it may build modules from a case's sizes and seeds, and must not hold what `truth` finds out.
    `hints` has a sentence for each cause that `compare` names in a `Mark`: what a student who made it should look at.
    With a hint for "memory" the tensors of a call are bounded in the notebook too, not only in the judge.
    `minutes` and `difficulty` ("easy", "medium", "hard") are for the student to plan by, and `why` is two sentences on
    why it works, shown when it passes.
    An answer is tried on so many `cases`: fewer where one is of several situations that take long.
    Uses of `forbidden` names (such as "torch.utils.checkpoint") are flagged for a person, never failed. `self_reported`
    names what `call` can only count beside the student's code, which could change it: the judge flags such a score.
    """

    id: str
    points: float
    draw: Callable[[Generator], Any]
    call: Callable[[Callable, Any], Any]
    truth: Callable[[Any], Any]
    compare: Callable[[Any, Any, Any], Mark]
    minutes: int = 0
    difficulty: str = ""
    hints: Mapping[str, str] = field(default_factory=dict)
    why: str = ""
    forbidden: tuple[str, ...] = ()
    self_reported: str = ""
    cases: int = 4

    @property
    def function_name(self) -> str:
        """The name of the student's function: "lab01.saved_bytes" asks for `saved_bytes`."""
        return self.id.partition(".")[2]


class Paper(NamedTuple):
    """Cases of an exercise, as the student's code will see them, and the truth of each: made before that code runs."""

    exercise: Exercise
    cases: list
    truths: list


@dataclass(frozen=True)
class Attempt:
    """What came of calling a student's function on one case: "answered", or an outcome of `Result` and why."""

    outcome: str
    answer: Any = None
    message: str = ""


@dataclass(frozen=True)
class Result:
    """A score in [0, 1], an outcome, one sentence for the student, and flags for a person.

    `outcome` is "passed", "partly", "wrong", "not attempted", "crash", "timeout", "memory" or
    "processes". `case` is the first case that failed, for whoever may see it, and `cause` what went wrong there, if it
    has a name.
    """

    score: float
    outcome: str
    message: str
    flags: tuple[str, ...] = ()
    case: Any = None
    cause: str | None = None


def labs(package: str = PACKAGE) -> list[str]:
    """The labs of `package`, such as ["lab01", "lab02"], imported or not."""
    names = (module.name for module in iter_modules(import_module(package).__path__))
    return sorted(name for name in names if re.fullmatch(r"lab\d\d", name))


def exercises_of(lab: str, package: str = PACKAGE) -> tuple[Exercise, ...]:
    """The exercises of one lab, in the order of its notebook."""
    return tuple(import_module(f"{package}.{lab}").EXERCISES)


def find(exercise_id: str, package: str = PACKAGE) -> Exercise:
    """The exercise called `exercise_id`. Raises `ValueError`, one sentence that lists the known ids."""
    lab, known_labs = exercise_id.partition(".")[0], labs(package)
    searched = [lab] if lab in known_labs else known_labs
    known = {exercise.id: exercise for name in searched for exercise in exercises_of(name, package)}
    if exercise_id not in known:
        raise ValueError(f"{exercise_id!r} is not an exercise; known: {', '.join(known) or 'none'}")
    return known[exercise_id]
