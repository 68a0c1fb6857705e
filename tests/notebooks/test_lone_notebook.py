"""A notebook on its own, as on Colab, fetches the course and what its lab needs, and leaves torch as it is."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from zipfile import ZipFile

import nbformat
import pytest
import torch
from places import ROOT

from labs_utils import lone_notebook
from labs_utils.lone_notebook import set_up

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
ADDRESS = PROJECT["urls"]["Repository"]
PATHS = {path.stem[:2]: path for path in sorted((ROOT / "notebooks").glob("*.ipynb"))}
QUICKEST = "01"
FACTS = "import json, labs_utils; print(json.dumps([labs_utils.__file__, torch.__file__, torch.__version__]))"
CONFLICT = "\nThe conflict is caused by:\n labs-utils depends on torch>=2.9\n You requested torch==2.8\n\nTo fix this"
every_lab = pytest.mark.parametrize("lab", PATHS)


def cells(lab):
    return nbformat.read(PATHS[lab], as_version=4).cells


def set_up_cells(lab):
    """The source of a lab's set-up cells: the one that fetches, and the imports."""
    return [cell.source for cell in cells(lab) if cell.metadata.get("labs", {}).get("role") == "setup"]


@every_lab
def test_the_first_code_cell_fetches_from_the_courses_one_address(lab):
    (code, *_) = [cell for cell in cells(lab) if cell.cell_type == "code"]
    assert (
        code.source == set_up_cells(lab)[0] == set_up_cells("00")[0].replace('set_up("lab00")', f'set_up("lab{lab}")')
    )
    assert re.findall(r"https://[^\"]+", code.source) == [f"{ADDRESS}/archive/main.zip"]


@every_lab
def test_the_title_links_to_this_notebook_on_colab(lab):
    owner_and_name = ADDRESS.removeprefix("https://github.com/")
    on_colab = f"https://colab.research.google.com/github/{owner_and_name}/blob/main/notebooks/{PATHS[lab].name}"
    assert f"[Open in Colab]({on_colab})" in cells(lab)[0].source.splitlines()


def test_the_course_is_cited_under_its_address():
    assert f"\nrepository-code: {ADDRESS}\n" in (ROOT / "CITATION.cff").read_text("utf-8")


def test_the_readmes_lines_change_the_address_everywhere(tmp_path):
    readme = (ROOT / "README.md").read_text("utf-8")
    lines = re.search(r"^old=.+\nsed -i .+$", readme, re.MULTILINE)[0].replace("OWNER/NAME", "someone/labs")
    for name in ("pyproject.toml", "CITATION.cff", "notebooks"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / name)
    subprocess.run(lines, shell=True, cwd=tmp_path, check=True)
    changed = {path.name: path.read_text("utf-8") for path in tmp_path.rglob("*.*") if path.is_file()}
    assert len(changed) == len(PATHS) + 2
    assert all("someone/labs" in text and ADDRESS[19:] not in text for text in changed.values())


def test_every_lab_has_an_extra_and_none_asks_for_torch():
    extras = PROJECT["optional-dependencies"]
    assert {name for name in extras if name.startswith("lab")} == {f"lab{lab}" for lab in PATHS}
    assert not any(need.startswith("torch") for needs in extras.values() for need in needs)


@pytest.fixture
def lone(tmp_path, monkeypatch):
    """Where the course isn't importable; returns what runs a lab's first cell."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    return lambda lab: exec(set_up_cells(lab)[0], {})


@pytest.mark.parametrize(
    "source, reason", [("http://127.0.0.1:9/course.zip", "refused"), ((ROOT / "README.md").as_uri(), "not a zip file")]
)
def test_a_course_that_cannot_be_fetched_is_said_in_one_sentence(lone, monkeypatch, source, reason):
    monkeypatch.setenv("LABS_SOURCE", source)
    with pytest.raises(SystemExit, match=f"can't be fetched from {re.escape(source)}: .*{reason}"):
        lone("01")


@pytest.fixture
def fetched(tmp_path, monkeypatch):
    """This course as if a notebook in the working folder had fetched it; returns the commands that were run for it."""
    course, commands = tmp_path / "fetched-course/course-main", []

    def pip(command, **options):
        constraints = Path(command[command.index("--constraint") + 1]).read_text()
        commands.append((command, constraints))
        return SimpleNamespace(returncode=0, stderr="")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(lone_notebook, "COURSE", course)
    monkeypatch.setattr("subprocess.run", pip)
    return commands


def course_installed(monkeypatch, folder, *needs):
    """As if the course were installed from that folder, and asked for these."""
    found = SimpleNamespace(requires=needs, read_text=lambda name: json.dumps({"url": folder.as_uri()}))
    monkeypatch.setattr(lone_notebook, "distribution", lambda name: found)


def test_in_a_clone_nothing_is_installed(monkeypatch):
    monkeypatch.setattr("subprocess.run", lambda *args, **kwargs: pytest.fail("a process was started"))
    set_up("lab04")


def test_the_course_is_installed_with_the_labs_extra_and_torch_held_as_it_is(fetched, monkeypatch):
    def install_course(command, run=subprocess.run, **options):
        course_installed(monkeypatch, lone_notebook.COURSE)
        return run(command, **options)

    monkeypatch.setattr("subprocess.run", install_course)
    set_up("lab04")
    ((command, constraints),) = fetched
    assert command[-2:] == ["--editable", f"{lone_notebook.COURSE}[lab04]"]
    assert constraints == f"torch=={version('torch')}\n"


@pytest.mark.parametrize(
    "need, is_here",
    [
        ("numpy>=1; extra == 'lab04'", True),
        ("numpy>=1000; extra == 'lab04'", False),
        ("no-such-package; extra == 'lab04'", False),
        ("no-such-package; extra == 'lab05'", True),
        ("no-such-package; platform_system == 'Nowhere' and extra == 'lab04'", True),
    ],
)
def test_another_lab_in_the_same_environment_installs_only_what_is_missing(fetched, monkeypatch, need, is_here):
    course_installed(monkeypatch, lone_notebook.COURSE, "torch", need)
    if is_here:
        set_up("lab04")
    else:  # this pip installs nothing, as one does whose packages a running kernel doesn't see
        with pytest.raises(SystemExit, match=f"doesn't see {need.split('>')[0].split(';')[0]} yet: restart"):
            set_up("lab04")
    assert len(fetched) == (not is_here)


@pytest.mark.parametrize(
    "output, errors, reason",
    [
        ("", "WARNING: slow\nERROR: No matching distribution\nfound for deepspeed", "No matching distribution found"),
        (CONFLICT, "ERROR: Cannot install", "labs-utils depends on torch>=2.9 You requested torch==2.8$"),
        ("", "No module named pip", "No module named pip$"),
    ],
)
def test_what_pip_cannot_install_is_said_in_one_sentence(fetched, monkeypatch, output, errors, reason):
    failed = SimpleNamespace(returncode=1, stdout=output, stderr=errors)
    monkeypatch.setattr("subprocess.run", lambda *args, **kwargs: failed)
    beside = re.escape(f"lab04 needs beside torch {version('torch')}: ")
    with pytest.raises(SystemExit, match=f"^pip can't install what {beside}{reason}"):
        set_up("lab04")


@pytest.fixture
def source(tmp_path_factory):
    """The course as the archive that a notebook fetches."""
    archive = tmp_path_factory.mktemp("archive") / "course.zip"
    with ZipFile(archive, "w") as file:
        for top in ("pyproject.toml", "README.md", "LICENSE", "labs_utils", "data"):
            paths = [path for path in (ROOT / top).rglob("*") if path.is_file()] or [ROOT / top]
            for path in paths:
                if "__pycache__" not in path.parts:
                    file.write(path, Path("llm-training-labs-main", path.relative_to(ROOT)))
    return archive.as_uri()


class LonePlace:
    """A folder that holds one notebook, and an environment that sees this one's packages but not the course."""

    def __init__(self, folder, source):
        self.folder, self.source, self.environment = folder, source, folder / "environment"
        self.renew()

    def renew(self):
        """A new machine: what was installed is gone."""
        shutil.rmtree(self.environment, ignore_errors=True)
        venv.create(self.environment, symlinks=True)
        (packages,) = self.environment.glob("lib/python*/site-packages")
        seen = [path for path in sys.path if path.endswith("site-packages")]
        (packages / "seen.pth").write_text("\n".join(seen))  # whose own .pth files, the course's too, aren't followed

    def run(self, *arguments):
        """What a Python of that environment prints."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST", "JPY"))}
        # Offline: pip may take only what is there, setuptools for the course's own build included.
        kept |= {"LABS_SOURCE": self.source, "PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0"}
        command = [self.environment / "bin/python", *arguments]
        done = subprocess.run(command, cwd=self.folder, env=kept, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture
def place(tmp_path, source):
    return LonePlace(tmp_path, source)


@pytest.mark.slow
@every_lab
def test_the_set_up_of_a_lone_notebook_imports_the_course_that_it_has_fetched_and_keeps_torch(place, lab):
    """The real pip resolves the lab's extra, but finds all of it there: nothing is built but the course itself.

    So what a download of DeepSpeed brings along is left out, and so is every Python but this one.
    """
    *_, facts = place.run("-c", "\n".join([*set_up_cells(lab), FACTS])).splitlines()
    course, *torch_found = json.loads(facts)
    assert Path(course).parents[1] == place.folder / "fetched-course/llm-training-labs-main"
    assert torch_found == [torch.__file__, torch.__version__]


@pytest.mark.slow
def test_a_lone_notebook_runs_to_its_end(place):
    """One lab, whole; the others differ in their cells after set-up, which run in a clone in the tests of all labs."""
    shutil.copy(PATHS[QUICKEST], place.folder)
    place.run("-m", "pytest", "--nbmake", "-p", "no:cacheprovider", PATHS[QUICKEST].name)
    assert (place.folder / "fetched-course").is_dir()


@pytest.mark.slow
def test_a_lone_notebook_goes_on_after_a_disconnect(place):
    def fetch():
        return "Installing" in place.run("-c", set_up_cells("01")[0])

    assert fetch() and not fetch()
    place.renew()  # the folder is there, the packages are gone
    assert fetch()
    shutil.rmtree(place.folder / "fetched-course")  # the other way round
    assert not fetch() and (place.folder / "fetched-course").is_dir()
