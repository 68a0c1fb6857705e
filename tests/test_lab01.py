"""Lab 01 keeps its promises: small cells, a guess before each answer, sources beside figures, every case answered."""

import csv
import re
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOK = nbformat.read(ROOT / "notebooks" / "01_forward_backward_memory.ipynb", as_version=4)
CELLS = {cell.id: cell for cell in NOTEBOOK.cells}
CODE = [cell for cell in NOTEBOOK.cells if cell.cell_type == "code"]
MARKDOWN = [cell for cell in NOTEBOOK.cells if cell.cell_type == "markdown"]
PREDICTED = re.compile(r'\bpredict\("(lab01\.\w+)", (.+?)[,)]')
REVEALED = re.compile(r'\breveal\("(lab01\.\w+)"')
MEASURED = re.compile(r"\d\s*(?:[KMGT]i?B\b|ms\b|seconds?\b|TFLOP|tokens/s)")
SOURCED = re.compile(r"https?://|[Ll]ecture|Source:|bytes")
VERDICTS = {"holds", "holds with a condition", "loose", "wrong"}

# Reported cases, by number: the cell that answers, the name of its source there, and right figures.
CASES = {
    "PF-001": ("wrong-twice-the-weights", "huggingface/transformers", "14,949", "1,343", "7,275", "6,775"),
    "PF-002": ("wrong-forgot-logits", "stas00/ml-engineering", "31 GiB", "240 GiB", "28 hidden states"),
    "PF-007": ("wrong-four-times", "caomaolufei/AIInfraGuide/issues/24", "107 GB", "80.4"),
    "PF-008": ("wrong-always-twenty", "AI-Hypercomputer/maxtext/issues/606", "134 GB", "80.4 GB"),
    "PF-011": ("wrong-bf16-one-thing", "Lightning-AI/litgpt/pull/275", "33.51", "15.86", "22.35", "14.82"),
    "PF-013": ("wrong-foreach", "meta-pytorch/torchtune/pull/389", "13.5 GB", "54 GB", "40.5 GB", "27 GB"),
    "PF-015": ("wrong-first-step", "roboflow/rf-detr/pull/1342", "314.5", "703.8", "389.3", "128.4"),
    "PF-016": ("wrong-cast", "huggingface/transformers/pull/33902", "18.5 GiB", "10.6 GiB"),
    "PF-019": ("wrong-rows-differ", "meta-pytorch/torchtune/issues/794", "Compare rows only where"),
    "PF-020": ("wrong-packing", "pytorch/torchtune", "25.5", "60", "51.0", "42.9", "24.9", "17.6", "3.4 times"),
    "PF-023": ("wrong-lora-one-percent", "huggingface/peft", "32 GB", "14.4 GB", "47.14 GB"),
    "PF-025": ("wrong-table-is-enough", "hiyouga/LlamaFactory/issues/1158", "18 GB", "76 to 90 GB"),
    "PF-027": ("wrong-reserved", "pytorch/pytorch/issues/40989", "15,006", "16,726", "17,402", "19,354"),
    "PF-029": ("wrong-context", "stas00/ml-engineering", "0.47 GiB", "1.78 GiB", "0.55 GiB", "2.00 GiB"),
    "PF-032": ("wrong-half-free", "pytorch/pytorch/issues/35901", "11.64 GB", "0.50 GB", "11.6 GB"),
    "PF-034": ("wrong-no-sync", "TristanBilot/mlx-benchmark/pull/21", "0.03", "1.36", "0.59"),
    "PF-037": ("wrong-unknown", "huggingface/transformers/issues/32499", "saved-tensor hooks"),
}
# What a case is about and this machine can show, it shows.
SHOWN_LIVE = {
    "PF-001": "weight-count",
    "PF-002": "logits-bars",
    "PF-008": "recipe-bars",
    "PF-011": "recipe-bf16",
    "PF-013": "when-optimizer",
    "PF-015": "when-timeline",
    "PF-016": "logits-table",
    "PF-020": "growth-bars",
    "PF-027": "counters-8b",
    "PF-029": "counters-live",
    "PF-032": "counters-fragment",
    "PF-034": "wrong-no-sync-live",
    "PF-037": "saved-table",
}


def rows(name):
    with open(ROOT / "data" / name, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_every_guess_is_blank_and_is_answered_later():
    source = "\n".join(cell.source for cell in CODE)
    guesses, answers = list(PREDICTED.finditer(source)), list(REVEALED.finditer(source))
    assert len(guesses) >= 8 and {guess[2] for guess in guesses} == {"..."}
    assert sorted(guess[1] for guess in guesses) == sorted(answer[1] for answer in answers)
    place = {answer[1]: answer.start() for answer in answers}
    assert [guess[1] for guess in guesses if guess.start() > place[guess[1]]] == []


@pytest.mark.parametrize("cell", MARKDOWN, ids=lambda cell: cell.id)
def test_a_quantity_in_the_text_is_the_lectures_or_has_a_source(cell):
    """What this machine measures stands in outputs only, so that the text is true on every machine."""
    paragraphs = [cell.source] if cell.id.startswith("wrong-") else cell.source.split("\n\n")
    bare = [text for text in paragraphs if MEASURED.search(text) and not SOURCED.search(text)]
    assert bare == []


def test_every_figure_from_elsewhere_names_where_it_is_from():
    wrong = [cell for cell in MARKDOWN if "<details>" in cell.source]
    assert len(wrong) == len(CASES)
    assert [cell.id for cell in wrong if not re.search(r"\nSource: \[[\w./-]+", cell.source)] == []


@pytest.mark.parametrize("case", CASES)
def test_every_reported_case_is_answered_with_its_right_figures(case):
    cell_id, *expected = CASES[case]
    assert [figure for figure in expected if figure not in CELLS[cell_id].source] == []


@pytest.mark.parametrize("case", SHOWN_LIVE)
def test_what_can_be_shown_is_shown(case):
    assert case in CASES and CELLS[SHOWN_LIVE[case]].cell_type == "code"


def test_the_terms_of_the_card_are_those_of_the_glossary():
    glossary = {row["term"]: row["zh"] for row in rows("glossary.csv")}
    assert list(glossary) == sorted(glossary, key=str.lower) and all(row["meaning"] for row in rows("glossary.csv"))
    for terms, names in re.findall(r"^\| ([a-z][^|]+) \| ([^|]+) \| [^|]+ \|$", CELLS["terms"].source, re.MULTILINE)[
        1:
    ]:
        pairs = zip(terms.split(", "), names.split("、"), strict=True)
        assert all(glossary[term] == name for term, name in pairs)


def test_every_claim_of_the_lecture_has_a_verdict_a_figure_and_a_source():
    claims = rows("lecture_claims.csv")
    assert set(claims[0]) == {"claim_zh", "claim_en", "where", "verdict", "figure", "source", "lab"}
    assert all(all(claim.values()) and claim["verdict"] in VERDICTS for claim in claims)
    sections = {re.match(r"Introduction (\d)", claim["where"])[1] for claim in claims if claim["where"].startswith("I")}
    assert sections == set("12345")
