"""`fill`: the one operation behind release, solutions, wrong answers and grading; and where its sources come from.

Cells are known by their metadata: `{"labs": {"exercise": id}}` is what the student writes, `{"labs": {"check": id}}`
checks it, and `{"labs": {"role": "setup"}}` prepares both.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import NamedTuple

from nbformat import NotebookNode


class WrongAnswer(NamedTuple):
    """A plausible mistake: the exercise, what is wrong with it, and its source under the exercise's own name."""

    exercise_id: str
    label: str
    source: str


def fill(notebook: NotebookNode, sources: Mapping[str, str], short: bool = False) -> NotebookNode:
    """A copy of `notebook` with the exercise cells of `sources` ({exercise id: source}) replaced.

    `short` keeps set-up, exercise and check cells only: what a grader runs.

    Raises:
        ValueError: an id that has no exercise cell, or two.
    """
    filled = deepcopy(notebook)
    cells = _exercise_cells(filled)
    for exercise_id in [*sources, *_ids(filled, "check")]:
        if exercise_id not in cells:
            raise ValueError(f"no exercise cell for {exercise_id!r}; the notebook has {', '.join(cells) or 'none'}")
    for exercise_id, source in sources.items():
        cells[exercise_id].source = source
    if short:
        filled.cells = [cell for cell in filled.cells if _is_graded(cell)]
    return filled


def stubs(notebook: NotebookNode) -> dict[str, str]:
    """The exercise cells as they stand: {exercise id: source}. Raises `ValueError` where an id comes twice."""
    return {exercise_id: cell.source for exercise_id, cell in _exercise_cells(notebook).items()}


def setup_imports(notebook: NotebookNode) -> str:
    """The import statements of the set-up cells: what an exercise cell may rely on wherever it runs."""
    from IPython.core.inputtransformer2 import TransformerManager

    cells = [cell.source for cell in notebook.cells if _label(cell, "role") == "setup" and cell.cell_type == "code"]
    module = ast.parse(TransformerManager().transform_cell("\n".join(cells)))  # a set-up cell may hold !pip lines
    return "\n".join(ast.unparse(node) for node in module.body if isinstance(node, (ast.Import, ast.ImportFrom)))


def solutions(path: Path) -> dict[str, str]:
    """The functions of a file like `solutions/lab01.py`: {"lab01.name": source}, with what each needs before it."""
    return {f"{path.stem}.{name}": source for name, source in _functions(path).items()}


def wrong_answers(path: Path) -> Iterator[WrongAnswer]:
    """The functions of a file like `tests/wrong_answers/lab01.py`, each called `name__what_is_wrong`."""
    for full_name, source in _functions(path).items():
        name, _, label = full_name.partition("__")
        yield WrongAnswer(f"{path.stem}.{name}", label, re.sub(rf"\b{full_name}\b", name, source))


def _label(cell: NotebookNode, key: str) -> str | None:
    return cell.metadata.get("labs", {}).get(key)


def _ids(notebook: NotebookNode, key: str) -> list[str]:
    return [_label(cell, key) for cell in notebook.cells if _label(cell, key)]


def _is_graded(cell: NotebookNode) -> bool:
    return _label(cell, "role") == "setup" or bool(_label(cell, "exercise") or _label(cell, "check"))


def _exercise_cells(notebook: NotebookNode) -> dict[str, NotebookNode]:
    cells: dict[str, NotebookNode] = {}
    for cell in notebook.cells:
        exercise_id = _label(cell, "exercise")
        if exercise_id in cells:
            raise ValueError(f"two exercise cells for {exercise_id!r}")
        if exercise_id:
            cells[exercise_id] = cell
    return cells


def _functions(path: Path) -> dict[str, str]:
    """Each public top-level function of a file: {name: imports, what it uses of the file, and itself}."""
    text = path.read_text("utf-8")
    body = ast.parse(text).body
    public = [node for node in body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")]
    return {node.name: _with_its_needs(node, body, text.splitlines()) for node in public}


def _with_its_needs(function: ast.FunctionDef, body: list[ast.stmt], lines: list[str]) -> str:
    """The source of the imports, then of every statement that `function` uses, through others too, in file order."""
    needed = [function]
    for node in needed:  # grows while it is walked
        own = {inner.arg for inner in ast.walk(node) if isinstance(inner, ast.arg)}
        names = {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)} - own
        needed += [other for other in body if _defined(other) & names and other not in needed]
    imports = [_text(node, lines) for node in body if isinstance(node, (ast.Import, ast.ImportFrom))]
    rest = [_text(node, lines) for node in body if node in needed]
    return "\n".join(imports) + "\n\n\n" * bool(imports) + "\n\n\n".join(rest)


def _defined(node: ast.stmt) -> set[str]:
    """The names that a top-level function, class or assignment makes."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return {inner.id for target in targets for inner in ast.walk(target) if isinstance(inner, ast.Name)}


def _text(node: ast.stmt, lines: list[str]) -> str:
    first = min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", []))])
    return "\n".join(lines[first - 1 : node.end_lineno])
