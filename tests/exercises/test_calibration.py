"""Every exercise of every lab: a stub earns nothing, the solution everything, and no wrong answer full marks.

A wrong answer whose label begins with "memory_" is right but takes too much memory, which only the judge's cap sees.
"""

import sys
from collections import Counter
from functools import cache
from pathlib import Path
from typing import NamedTuple

import nbformat
import numpy as np
import pytest
from places import TESTS

from labs_utils.exercises.contract import PACKAGE, exercises_of, find, labs
from labs_utils.exercises.grading import grade
from labs_utils.exercises.judge import MEMORY_BYTES, judge
from labs_utils.pages.fill import WrongAnswer, setup_imports, solutions, stubs, wrong_answers

LEAST_WRONG_ANSWERS = 3
SEED = 20


class Course(NamedTuple):
    """Where a collection of labs keeps its exercises, notebooks, solutions and wrong answers."""

    package: str
    root: Path
    wrong_answers: Path
    memory_bytes: int

    def notebook(self, lab):
        (path,) = (self.root / "notebooks").glob(f"{lab.removeprefix('lab')}_*.ipynb")
        return nbformat.read(path, as_version=4)


OURS = Course(PACKAGE, TESTS.parent, TESTS / "wrong_answers", MEMORY_BYTES)
TOY = Course("toy.exercises", TESTS / "toy", TESTS / "toy" / "wrong_answers", 128 * 2**20)
LABS = [(TOY, "lab90"), *((OURS, lab) for lab in labs())]


class Candidate(NamedTuple):
    """A source for one exercise, with the set-up of its notebook."""

    course: Course
    exercise_id: str
    label: str
    source: str
    setup: str

    def graded(self):
        exercise, namespace = find(self.exercise_id, self.course.package), {}
        exec(self.setup, namespace)
        exec(self.source, namespace)
        return grade(exercise, namespace[exercise.function_name], np.random.default_rng(SEED))

    def judged(self):
        caps = {"seed": SEED, "memory_bytes": self.course.memory_bytes, "setup": self.setup}
        return judge(self.exercise_id, self.source, package=self.course.package, **caps)


@cache
def candidates(course, lab):
    notebook = course.notebook(lab)
    solved = solutions(course.root / "solutions" / f"{lab}.py")
    given = [WrongAnswer(i, "stub", source) for i, source in stubs(notebook).items()]
    given += [WrongAnswer(i, "solution", source) for i, source in solved.items()]
    given += wrong_answers(course.wrong_answers / f"{lab}.py")
    return [Candidate(course, *one, setup_imports(notebook)) for one in given]


def is_calibrated(candidate, result):
    if candidate.label == "stub":
        return (result.score, result.outcome) == (0, "not attempted")
    if candidate.label == "solution":
        return (result.score, result.outcome, result.flags) == (1, "passed", ())
    return result.score < 1


ALL = [
    pytest.param(one, id=f"{one.exercise_id}-{one.label}", marks=[pytest.mark.slow] * (course is OURS))
    for course, lab in LABS
    for one in candidates(course, lab)
]
IN_PROCESS = [one for one in ALL if not one.values[0].label.startswith("memory_")]


@pytest.mark.parametrize("course, lab", LABS, ids=[lab for _, lab in LABS])
def test_every_exercise_has_a_stub_a_solution_and_three_wrong_answers(course, lab):
    ids = [exercise.id for exercise in exercises_of(lab, course.package)]
    given = candidates(course, lab)
    wrong = Counter(one.exercise_id for one in given if one.label not in ("stub", "solution"))
    assert [one.exercise_id for one in given if one.label == "stub"] == ids
    assert [one.exercise_id for one in given if one.label == "solution"] == ids
    assert set(wrong) == set(ids) and min(wrong.values()) >= LEAST_WRONG_ANSWERS


@pytest.mark.parametrize("candidate", IN_PROCESS)
def test_in_process_every_source_gets_what_it_deserves(candidate):
    result = candidate.graded()
    assert is_calibrated(candidate, result), result


@pytest.mark.skipif(sys.platform != "linux", reason="the judge's caps are Linux's")
@pytest.mark.parametrize("candidate", ALL)
def test_in_the_judge_every_source_gets_what_it_deserves(candidate):
    result = candidate.judged()
    assert is_calibrated(candidate, result), result
    assert not candidate.label.startswith("memory_") or result.outcome == "memory"
