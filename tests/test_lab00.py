"""Lab 00 keeps its promises: small cells, a guess before each answer, sources beside figures, every case answered."""

import csv
import re
from pathlib import Path

import nbformat
import pytest

from labs_utils import LLAMA_8B, Run, recall
from labs_utils.device import H200

ROOT = Path(__file__).parents[1]
NOTEBOOK = nbformat.read(ROOT / "notebooks" / "00_setup.ipynb", as_version=4)
CELLS = {cell.id: cell for cell in NOTEBOOK.cells}
CODE = [cell for cell in NOTEBOOK.cells if cell.cell_type == "code"]
MARKDOWN = [cell for cell in NOTEBOOK.cells if cell.cell_type == "markdown"]
SOURCE = "\n".join(cell.source for cell in CODE)
MEASURED = re.compile(r"\d\s*(?:[KMGT]i?B\b|ms\b|seconds?\b|[TG]?FLOP|tokens/s)")
SOURCED = re.compile(r"https?://|[Ll]ecture|Source:|weights of an 8B model")

# Reported cases, by number: the cell that answers, the name of its source there, and right figures.
CASES = {
    "PF-034": ("wait-recorded", "TristanBilot/mlx-benchmark/pull/21", "1.36", "1.01", "1.29", "0.90", "0.59"),
    "PF-135": ("wrong-oom-forever", "pytorch/pytorch/issues/27600", "sys.last_value", "empty_cache"),
    "PF-137": ("wrong-fork", "huggingface/accelerate/issues/1751", "torchrun"),
    "PF-139": ("wrong-spawn", "pytorch/pytorch/issues/20375", "torchrun"),
    "PF-142": ("wrong-bf16-t4", "unslothai/unsloth/issues/2783", "8.0", "fp16"),
    "PF-143": ("wrong-same-notebook", "googlecolab/colabtools/issues/4796", "versions"),
    "PF-145": ("wrong-colab-files", "instructlab/instructlab/issues/199", "--resume"),
}


def test_every_guess_is_blank_and_is_answered_later():
    guesses = {match[1]: match for match in re.finditer(r'\bpredict\("(lab00\.\w+)", (.+?)[,)]', SOURCE)}
    answers = {match[1]: match for match in re.finditer(r'\breveal\("(lab00\.\w+)"', SOURCE)}
    assert len(guesses) >= 6 and {guess[2] for guess in guesses.values()} == {"..."}
    assert guesses.keys() == answers.keys()
    assert all(guesses[name].start() < answers[name].start() for name in guesses)


@pytest.mark.parametrize("cell", MARKDOWN, ids=lambda cell: cell.id)
def test_a_quantity_in_the_text_has_a_source(cell):
    """What this machine measures stands in outputs only, so that the text is true on every machine."""
    paragraphs = [cell.source] if cell.id.startswith(("wrong-", "wait-")) else cell.source.split("\n\n")
    assert [text for text in paragraphs if MEASURED.search(text) and not SOURCED.search(text)] == []


@pytest.mark.parametrize("case", CASES)
def test_every_reported_case_is_answered_with_its_right_figures(case):
    cell_id, *expected = CASES[case]
    assert [figure for figure in expected if figure not in CELLS[cell_id].source] == []


def test_the_wrong_clock_comes_before_the_right_one():
    assert SOURCE.index("stopwatch(") < SOURCE.index("queue.submit") < SOURCE.index("timed(multiply")


def test_the_terms_of_the_card_are_those_of_the_glossary():
    with open(ROOT / "data" / "glossary.csv", encoding="utf-8", newline="") as file:
        glossary = {row["term"]: row["zh"] for row in csv.DictReader(file)}
    terms = re.findall(r"^\| ([\w/ -]+) \| ([^|]+) \| [^|]+ \|$", CELLS["terms"].source, re.MULTILINE)[1:]
    assert len(terms) > 5 and {term: name for term, name in terms if glossary.get(term) != name} == {}


def test_what_the_last_figure_shows_as_recorded_is_recorded():
    run = Run(model=LLAMA_8B, seq_len=4096, precision="bf16")
    assert recall(run, H200) and recall(run.replace(checkpointing="full"), H200)
