"""What the repository promises: the README is true, pins are exact, notebooks are clean, make does nothing twice."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Literal, get_args, get_origin

import nbformat
import pytest
from places import ROOT

from labs_utils.run import PRESETS, Run

README = (ROOT / "README.md").read_text("utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
PIN = re.compile(
    r"^(?P<name>[A-Za-z0-9_.-]+)(\[\w+\])?==(?P<version>[\w.]+)(; platform_system == \"Linux\")?(\s+#.*)?$"
)
IMPORT_TO_PACKAGE = {
    "jinja2": "Jinja2",
    "liger_kernel": "liger-kernel",
    "IPython": "ipykernel",
    "flash_attn": "flash-attn",
    "pynvml": "nvidia-ml-py",
}
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def requirement_lines(name: str) -> list[str]:
    lines = (ROOT / name).read_text("utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def imported_packages(path: Path) -> set[str]:
    nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
    modules = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    modules += [node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module and not node.level]
    return {module.split(".")[0] for module in modules}


def field_row(field: str) -> list[str]:
    row = re.search(rf"^\| `{field}` \|(.+)\|(.+)\|$", README, re.MULTILINE)
    assert row, f"the README's table has no row for {field}"
    return [cell.strip() for cell in row.groups()]


def literal_values(annotation) -> list[str]:
    return [str(value) for value in get_args(annotation)] if get_origin(annotation) is Literal else []


def test_the_readme_starts_with_the_two_commands():
    commands = re.search(r"```sh\n(.+?)```", README, re.DOTALL)[1].splitlines()
    assert [command.split("#")[0].strip() for command in commands] == ["make labs", "make test"]


@pytest.mark.parametrize("field", Run.model_fields)
def test_the_readme_lists_every_field_with_its_values_and_default(field):
    values, default = field_row(field)
    for value in literal_values(Run.model_fields[field].annotation):
        assert f"`{value}`" in values
    expected = "tiny" if field == "model" else json.dumps(Run().to_dict()[field]).strip('"')
    assert default.startswith(f"`{expected}`")


def test_the_readme_names_every_preset_and_no_unknown_field():
    assert all(f"`{name}`" in field_row("model")[0] for name in PRESETS)
    table = README.split("The fields of a run", 1)[1].split("##", 1)[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == set(Run.model_fields)


def test_the_runs_shown_in_the_readme_are_runs():
    shown = [json.loads(line) for line in re.findall(r"echo '(\{.+\})'", README)]
    assert shown and all(Run.parse(run) for run in shown)


def test_the_readme_links_to_files_that_are_there():
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert links and [link for link in links if "://" not in link and not (ROOT / link).exists()] == []


def test_every_requirement_is_pinned_to_one_version():
    lines = requirement_lines("requirements.txt") + requirement_lines("requirements-gpu.txt")
    assert lines and [line for line in lines if not PIN.match(line)] == []


def test_every_package_that_the_course_imports_is_pinned():
    lines = requirement_lines("requirements.txt") + requirement_lines("requirements-gpu.txt")
    pinned = {PIN.match(line)["name"] for line in lines}
    imported = set().union(*(imported_packages(path) for path in (ROOT / "labs_utils").rglob("*.py")))
    needed = {IMPORT_TO_PACKAGE.get(name, name) for name in imported - sys.stdlib_module_names - {"labs_utils"}}
    assert "torch" in needed and needed <= pinned


def test_the_package_asks_only_for_what_is_pinned_too():
    pinned = {PIN.match(line)["name"].lower() for line in requirement_lines("requirements.txt")}
    asked = PROJECT["dependencies"] + PROJECT["optional-dependencies"]["handouts"]
    assert {re.match(r"[\w-]+", line)[0].lower() for line in asked} <= pinned


def test_the_version_is_the_same_everywhere():
    cited = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text("utf-8"), re.MULTILINE)[1]
    latest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)[1]
    assert PROJECT["version"] == cited == latest


def test_every_data_file_and_every_column_of_the_gpu_table_is_described():
    described = (ROOT / "data/README.md").read_text("utf-8")
    names = [path.name for path in (ROOT / "data").iterdir() if path.name != "README.md"]
    columns = (ROOT / "data/gpus.csv").read_text("utf-8").splitlines()[0].split(",")
    assert [name for name in names + columns if f"`{name}" not in described] == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_committed_notebooks_are_valid_and_hold_no_outputs(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    run = [cell.id for cell in notebook.cells if cell.cell_type == "code" and (cell.outputs or cell.execution_count)]
    assert run == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_readme_lists_every_lab(path):
    assert re.search(rf"^\| \[{path.stem[:2]} ", README, re.MULTILINE)


@pytest.fixture
def built_course(tmp_path):
    """A course whose installation and one handout are up to date, as `make` sees it."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    oldest_first = ["requirements.txt", "pyproject.toml", "labs_utils/run.py", ".venv/.installed", "data/gpus.csv"]
    for second, name in enumerate([*oldest_first, "notebooks/01_x.ipynb", "handouts/01_x.html"]):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (second, second))
    return tmp_path


def make(course: Path, *arguments: str) -> subprocess.CompletedProcess:
    """`make` as from a shell, whatever the options of a `make test` around this test."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    return subprocess.run(["make", *arguments], cwd=course, env=environment, capture_output=True, text=True)


def planned(course: Path, target: str) -> str:
    return make(course, "-n", target).stdout


def test_make_labs_does_nothing_twice(built_course):
    assert "Nothing to be done" in planned(built_course, "labs")


@pytest.mark.parametrize("changed", ["notebooks/01_x.ipynb", "labs_utils/run.py", "data/gpus.csv"])
def test_make_labs_runs_a_notebook_again_when_what_it_shows_may_change(built_course, changed):
    (built_course / changed).touch()
    plan = planned(built_course, "labs")
    assert "labs_utils.cli handouts notebooks/01_x.ipynb" in plan and "pip install" not in plan


@pytest.mark.parametrize("changed", ["requirements.txt", "pyproject.toml"])
@pytest.mark.parametrize("target", ["labs", "test", "check"])
def test_make_installs_again_when_the_requirements_change(built_course, target, changed):
    (built_course / changed).touch()
    assert "pip install -r requirements.txt" in planned(built_course, target)


def test_a_python_that_is_too_old_is_told_in_one_sentence(built_course):
    (built_course / ".venv/.installed").unlink()
    for name in ("python", "python3.12", "python3.11", "python3"):
        fake = built_course / ".venv/bin" / name
        fake.parent.mkdir(exist_ok=True)
        fake.write_text("#!/bin/sh\nexit 1\n")
        fake.chmod(0o755)
    made = make(built_course, "labs")
    assert made.returncode != 0 and not (built_course / ".venv/.installed").exists()
    assert "Python 3.11 or newer" in made.stderr and "Traceback" not in made.stderr
