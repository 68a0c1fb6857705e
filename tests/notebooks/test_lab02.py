"""Lab 02's cells do what its text says."""

import nbformat
import pytest
from places import ROOT

from labs_utils.device import H200
from labs_utils.pages.fill import setup_imports
from labs_utils.recordings import benchmarks

NOTEBOOK = nbformat.read(ROOT / "notebooks" / "02_activation_checkpointing.ipynb", as_version=4)
CELLS = {cell.id: cell.source for cell in NOTEBOOK.cells}


def test_only_a_selective_policy_with_the_cast_cache_on_stops():
    namespace = {}
    exec(setup_imports(NOTEBOOK), namespace)
    exec(CELLS["keep-selective"].partition("\n\n\n")[0], namespace)
    namespace["show_table"] = lambda names, rows: None
    for cell in ("wrong-autocast-live", "wrong-autocast-table"):
        exec(CELLS[cell], namespace)
    stopped = {(kind, cached) for kind, cached, outcome in namespace["rows"] if outcome != "fine"}
    assert stopped == {("selective", "True")}


def test_pinned_memory_is_worth_what_the_lab_says():
    rates = {line.subject: line.value["median"] for line in benchmarks(H200) if line.subject.startswith("copy")}
    up, down = ([rates[f"copy {way}, {kind}"] for kind in ("pinned", "pageable")] for way in
                ("host to device", "device to host"))  # fmt: skip
    assert up[0] / up[1] == pytest.approx(8, abs=0.5) and down[0] / down[1] == pytest.approx(4, abs=0.5)
    there_and_back = [1 / down[n] + 1 / up[n] for n in (0, 1)]
    assert there_and_back[1] / there_and_back[0] == pytest.approx(6, abs=0.5)
