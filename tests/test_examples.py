"""The examples in docstrings are true."""

import doctest
from importlib import import_module

import pytest
from places import ROOT

MODULES = sorted(path for path in (ROOT / "labs_utils").rglob("*.py") if ">>>" in path.read_text("utf-8"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_examples_run_as_they_are_written(path):
    module = import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
    failed, tried = doctest.testmod(module)
    assert tried and not failed
