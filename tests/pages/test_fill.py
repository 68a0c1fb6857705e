"""`fill`, and the sources it is fed with."""

import nbformat
import pytest
from nbclient import NotebookClient
from places import TOY

from labs_utils.pages.fill import fill, setup_imports, solutions, stubs, wrong_answers

IDS = ["lab90.mean_square", "lab90.extremes", "lab90.mean_distance"]


@pytest.fixture
def notebook():
    return nbformat.read(TOY / "notebooks" / "90_toy.ipynb", as_version=4)


@pytest.fixture
def solved():
    return solutions(TOY / "solutions" / "lab90.py")


def write(folder, text):
    path = folder / "lab05.py"
    path.write_text(text)
    return path


def test_filling_replaces_the_exercise_cells_and_nothing_else(notebook):
    filled = fill(notebook, {IDS[0]: "answer = 1"})
    changed = [(old.id, new.source) for old, new in zip(notebook.cells, filled.cells, strict=True) if old != new]
    assert changed == [("mean-square", "answer = 1")]
    assert filled.metadata == notebook.metadata and nbformat.validate(filled) is None


def test_filling_leaves_the_notebook_it_was_given_alone(notebook):
    before = nbformat.writes(notebook)
    fill(notebook, {IDS[0]: "answer = 1"}, short=True)
    assert nbformat.writes(notebook) == before


def test_the_short_form_keeps_set_up_exercise_and_check_cells(notebook):
    kept = [cell.id for cell in fill(notebook, {}, short=True).cells]
    parts = ("mean-square", "extremes", "mean-distance")
    assert kept == ["setup", *(f"{part}{end}" for part in parts for end in ("", "-check"))]


def test_an_unknown_id_is_one_sentence(notebook):
    with pytest.raises(ValueError, match="no exercise cell for 'lab90.typo'; the notebook has lab90.mean_square, lab"):
        fill(notebook, {"lab90.typo": ""})


def test_a_check_without_its_exercise_cell_is_one_sentence(notebook):
    notebook.cells = [cell for cell in notebook.cells if cell.id != "extremes"]
    with pytest.raises(ValueError, match="no exercise cell for 'lab90.extremes'"):
        fill(notebook, {})


def test_two_cells_for_one_exercise_are_refused(notebook):
    notebook.cells.append(notebook.cells[-2])
    with pytest.raises(ValueError, match="two exercise cells for 'lab90.mean_distance'"):
        stubs(notebook)


def test_a_notebook_filled_with_its_own_stubs_is_itself(notebook):
    assert list(stubs(notebook)) == IDS
    assert fill(notebook, stubs(notebook)) == notebook


def test_the_set_up_imports_come_without_magics(notebook):
    assert setup_imports(notebook) == "import sys\nimport numpy as np\nfrom labs_utils import check"


def test_a_solution_brings_imports_and_what_it_uses_of_its_file(solved):
    assert list(solved) == IDS
    assert solved["lab90.mean_square"].splitlines()[0] == "import numpy as np"
    assert "SQUARED = 2" in solved["lab90.mean_square"] and "def _total" in solved["lab90.mean_square"]
    assert "SQUARED" not in solved["lab90.extremes"] and "def mean" not in solved["lab90.extremes"]


def test_every_solution_runs_on_its_own(solved):
    for exercise_id, source in solved.items():
        namespace = {}
        exec(source, namespace)
        assert callable(namespace[exercise_id.partition(".")[2]])


def test_a_decorated_function_keeps_its_decorator_and_a_class_it_uses(tmp_path):
    text = "import functools\n\nclass Kept:\n    pass\n\n@functools.cache\ndef first(x):\n    return Kept, x\n"
    source = solutions(write(tmp_path, text))["lab05.first"]
    assert "class Kept" in source and source.endswith("@functools.cache\ndef first(x):\n    return Kept, x")


def test_a_wrong_answer_takes_the_exercises_name(tmp_path):
    text = "def total__counts_twice(n):\n    return 2 * total__counts_twice(n - 1) if n else 0\n"
    (wrong,) = wrong_answers(write(tmp_path, text))
    assert wrong == ("lab05.total", "counts_twice", "def total(n):\n    return 2 * total(n - 1) if n else 0")


def outputs(notebook):
    return ["".join(output.get("text", "") for output in cell.outputs) for cell in checks(notebook)]


def checks(notebook):
    return [cell for cell in notebook.cells if "check" in cell.metadata.get("labs", {})]


@pytest.mark.slow
def test_in_a_kernel_stubs_are_not_attempted_and_solutions_pass(notebook, solved):
    where = {"metadata": {"path": str(TOY / "notebooks")}}
    stubbed = NotebookClient(fill(notebook, {}, short=True), resources=where).execute()
    first, *others = outputs(stubbed)
    assert "not attempted" in first and others and all("still a stub" in text for text in others)
    filled = NotebookClient(fill(notebook, solved, short=True), resources=where).execute()
    assert all("passed. All 4 cases are right." in text for text in outputs(filled))
    assert all(output.output_type == "stream" for cell in checks(filled) for output in cell.outputs)
