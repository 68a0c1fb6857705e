"""The labs as tests use them: cells of a notebook that have run, and the sources that students may write."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import nbformat
from places import ROOT, TESTS, TOY

from labs_utils.exercises.contract import PACKAGE, Exercise, find
from labs_utils.pages.fill import setup_imports, solutions, stubs, wrong_answers

SHOWING = ("show_table", "reveal", "plot_parts", "plot_curves", "plot_schedule")


class Course(NamedTuple):
    """Where a collection of labs keeps its exercises, notebooks, solutions and wrong answers."""

    package: str
    root: Path
    wrong_answers: Path


OURS = Course(PACKAGE, ROOT, TESTS / "wrong_answers")
TOYS = Course("toy.exercises", TOY, TOY / "wrong_answers")


class Source(NamedTuple):
    """What may stand in an exercise cell: the stub, the solution, or a wrong answer by its label."""

    exercise_id: str
    label: str
    text: str
    course: Course

    @property
    def exercise(self) -> Exercise:
        return find(self.exercise_id, self.course.package)

    @property
    def setup(self) -> str:
        """The imports that the cell relies on."""
        return imports_of(self.exercise_id.partition(".")[0], self.course)

    @property
    def function(self) -> Callable:
        """The function that the cell defines."""
        namespace: dict[str, Any] = {}
        exec(self.setup, namespace)
        exec(self.text, namespace)
        return namespace[self.exercise.function_name]


@cache
def notebook(lab: str, course: Course = OURS) -> nbformat.NotebookNode:
    """The notebook of "lab03", as it is committed."""
    (path,) = (course.root / "notebooks").glob(f"{lab.removeprefix('lab')}_*.ipynb")
    return nbformat.read(path, as_version=4)


@cache
def imports_of(lab: str, course: Course = OURS) -> str:
    """What the set-up cells of a lab import."""
    return setup_imports(notebook(lab, course))


@cache
def sources(lab: str, course: Course = OURS) -> tuple[Source, ...]:
    """Every stub, solution and wrong answer of a lab, in this order."""
    solved = solutions(course.root / "solutions" / f"{lab}.py")
    given = [(exercise_id, "stub", text) for exercise_id, text in stubs(notebook(lab, course)).items()]
    given += [(exercise_id, "solution", text) for exercise_id, text in solved.items()]
    given += wrong_answers(course.wrong_answers / f"{lab}.py")
    return tuple(Source(*each, course) for each in given)


def solution(exercise_id: str) -> Callable:
    """The function that solves an exercise, such as "lab03.accumulate"."""
    all_of_lab = sources(exercise_id.partition(".")[0])
    (found,) = (each for each in all_of_lab if (each.exercise_id, each.label) == (exercise_id, "solution"))
    return found.function


def cell(lab: str, cell_id: str) -> str:
    """The source of a cell."""
    (found,) = (each.source for each in notebook(lab).cells if each.id == cell_id)
    return found


def after(lab: str, *cell_ids: str, **given: Any) -> dict[str, Any]:
    """The names that these cells of a lab have made, from its imports and those that are given; nothing is shown."""
    namespace: dict[str, Any] = {}
    exec(imports_of(lab), namespace)
    namespace |= {name: lambda *args, **kwargs: None for name in SHOWING} | given
    run(namespace, lab, *cell_ids)
    return namespace


def run(namespace: dict[str, Any], lab: str, *cell_ids: str) -> None:
    """Run further cells of a lab where others have run."""
    for cell_id in cell_ids:
        exec(cell(lab, cell_id), namespace)
