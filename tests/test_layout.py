"""The package's layout: rooms that use only rooms below them, modules and functions of a size that one can read."""

import ast
from pathlib import Path

import pytest
from places import ROOT

PACKAGE = ROOT / "labs_utils"
# From the top floor down; what isn't named here lies on the ground.
ROOMS = (
    "cli", "answer_table", "staff", "exercises", "doctor", "answers", "workers", "training", "time_model",
    "memory_model", "kernels", "profiling", "figures", "pages",
)  # fmt: skip
MODULES = sorted(PACKAGE.rglob("*.py"))
LONGEST_MODULE, LONGEST_FUNCTION = 250, 25


def name_of(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


NAMES = {name_of(path) for path in MODULES}


def imported(path: Path) -> set[str]:
    """The package's modules that a module imports anywhere, in functions too; faces are for those above."""
    modules = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "labs_utils":
            named = {f"{node.module}.{alias.name}" for alias in node.names} & NAMES
            modules |= named or {node.module}
        elif isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names if alias.name.split(".")[0] == "labs_utils"}
    return modules


def floor(module: str) -> int:
    """0 for the ground, more for each room above it."""
    room = (module.split(".") + [""])[1]
    return len(ROOMS) - ROOMS.index(room) if room in ROOMS else 0


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_room_imports_only_from_itself_and_from_rooms_below(path):
    own = name_of(path)
    assert [other for other in imported(path) if floor(other) > floor(own)] == []


def test_no_module_imports_itself_through_others():
    uses = {name_of(path): imported(path) & NAMES for path in MODULES}
    done: set[str] = set()
    while left := [module for module in uses if module not in done and uses[module] <= done]:
        done |= set(left)
    assert sorted(uses.keys() - done) == []


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_module_can_be_read_in_one_sitting(path):
    text = path.read_text("utf-8")
    assert len(text.splitlines()) <= LONGEST_MODULE
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
    assert [node.name for node in functions if body_lines(node) > LONGEST_FUNCTION] == []


def body_lines(function: ast.FunctionDef) -> int:
    """Lines of a function, its signature and its docstring left out."""
    body = function.body[1:] if ast.get_docstring(function) else function.body
    return body[-1].end_lineno - body[0].lineno + 1 if body else 0


def notebooks_imports():
    import nbformat

    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        for cell in nbformat.read(path, as_version=4).cells:
            if cell.cell_type == "code":
                lines = [line for line in cell.source.splitlines() if line.startswith("from labs_utils")]
                yield path.stem, lines, cell.metadata.get("labs", {}).get("role")


def test_notebooks_import_from_at_most_eight_faces_and_set_up_in_at_most_five_lines():
    faces = set()
    for lab, lines, role in notebooks_imports():
        faces |= {line.split()[1] for line in lines}
        assert role != "setup" or 0 < len(lines) <= 5, lab
        assert not any("(" in line for line in lines), lab  # an import is one line
    assert len(faces) <= 8 and all((ROOT / face.replace(".", "/") / "__init__.py").exists() for face in faces)
