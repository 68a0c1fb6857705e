"""Importing the package loads nothing heavy, and every public name is there when asked for."""

import subprocess
import sys
from importlib import import_module
from pkgutil import iter_modules

import pytest

import labs_utils

ROOMS = ["labs_utils", *(f"labs_utils.{room}" for room in ("answers", "doctor", "exercises", "figures", "profiling"))]
ROOMS += ["labs_utils.training", "labs_utils.workers"]
HEAVY = {"torch", "transformers", "matplotlib", "numpy", "pandas", "rich"}
ESTIMATE = "labs_utils.estimate(labs_utils.Run(model=labs_utils.LLAMA_8B), 'H200').peak_bytes > 0"


def loaded_by(code: str) -> set[str]:
    """The top-level modules of a fresh interpreter that has run `code`."""
    command = [sys.executable, "-c", f"import sys\n{code}\nprint(*sys.modules)"]
    modules = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return {module.split(".")[0] for module in modules}


@pytest.mark.parametrize(
    "code", ["import labs_utils", f"import labs_utils; assert {ESTIMATE}", "import labs_utils.cli"]
)
def test_importing_and_estimating_load_neither_torch_nor_other_heavy_libraries(code):
    loaded = loaded_by(code)
    assert "labs_utils" in loaded and not loaded & HEAVY


@pytest.mark.parametrize("name", labs_utils.__all__)
def test_every_public_name_loads(name):
    assert getattr(labs_utils, name) is not None
    assert name in dir(labs_utils)


@pytest.mark.parametrize("room", ROOMS)
def test_no_room_exports_a_name_that_one_of_its_modules_has(room):
    """Importing the module would put itself in the name's place."""
    face = import_module(room)
    assert not set(face.__all__) & {module.name for module in iter_modules(face.__path__)}
    assert all(getattr(face, name) is not None for name in face.__all__)


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(AttributeError, match="has no 'guess'; it has Answer, .*estimate"):
        _ = labs_utils.guess
