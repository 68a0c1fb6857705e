"""What only Lab 00 promises."""

import nbformat
from places import ROOT

from labs_utils import LLAMA_8B, Run, recall
from labs_utils.device import H200

NOTEBOOK = nbformat.read(ROOT / "notebooks" / "00_setup.ipynb", as_version=4)
SOURCE = "\n".join(cell.source for cell in NOTEBOOK.cells if cell.cell_type == "code")


def test_the_wrong_clock_comes_first_and_only_its_own_row_uses_it():
    assert SOURCE.index("def stopwatch(") < SOURCE.index("queue.submit") < SOURCE.index("time_call(multiply")
    uses = [line for line in SOURCE.splitlines() if "stopwatch(" in line and not line.startswith("def ")]
    assert all("multiply" in line for line in uses)  # no other figure is from a clock that doesn't wait


def test_what_the_last_figure_shows_as_recorded_is_recorded():
    run = Run(model=LLAMA_8B, seq_len=4096, precision="bf16")
    assert recall(run, H200) and recall(run.replace(checkpointing="full"), H200)
