"""Every notebook as it is committed: small cells, nothing run, names that can be read."""

import re
from statistics import median

import nbformat
import pytest
from places import ROOT

PATHS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.fixture(params=PATHS, ids=lambda path: path.stem)
def cells(request):
    return nbformat.read(request.param, as_version=4).cells


def code(cells):
    return [cell for cell in cells if cell.cell_type == "code"]


def test_cells_are_small_and_hold_one_idea(cells):
    lines = [len(cell.source.splitlines()) for cell in code(cells)]
    assert median(lines) <= 6 and max(lines) <= 25


def test_no_cell_has_been_run(cells):
    assert [cell.id for cell in code(cells) if cell.outputs or cell.execution_count] == []


def test_every_cell_has_a_name_of_its_own_that_can_be_read(cells):
    names = [cell.id for cell in cells]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name) for name in names)
