"""What every lab promises: a guess before each answer, a source beside each figure, every reported case answered."""

import csv
import re
from importlib import import_module

import nbformat
import pytest
from places import ROOT

LABS = sorted(path.stem[:2] for path in (ROOT / "notebooks").glob("*.ipynb"))
MEASURED = re.compile(r"\d\s*(?:[KMGT]i?B\b|ms\b|seconds?\b|[TG]?FLOP|tokens/s)")
SOURCED = re.compile(r"https?://|[Ll]ecture|Source:|bytes|weights of an 8B model")
TERM = re.compile(r"^\| ([\w/, -]+) \| ([^|]+) \| [^|]+ \|$", re.MULTILINE)
VERDICTS = {"holds", "holds with a condition", "loose", "wrong"}
LEAST_GUESSES = 6


def notebook_cells(lab):
    (path,) = (ROOT / "notebooks").glob(f"{lab}_*.ipynb")
    return {cell.id: cell for cell in nbformat.read(path, as_version=4).cells}


def cases(lab):
    return import_module(f"reported_cases.lab{lab}")


def of_type(cells, cell_type):
    return [cell for cell in cells.values() if cell.cell_type == cell_type]


def rows(name):
    with open(ROOT / "data" / name, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("lab", LABS)
def test_every_guess_is_blank_and_is_answered_later(lab):
    source = "\n".join(cell.source for cell in of_type(notebook_cells(lab), "code"))
    guesses = list(re.finditer(rf'\bpredict\(\s*"(lab{lab}\.\w+)", (.+?)[,)]', source))
    answers = list(re.finditer(rf'\breveal\(\s*"(lab{lab}\.\w+)"', source))
    assert len(guesses) >= LEAST_GUESSES and {guess[2] for guess in guesses} == {"..."}
    assert sorted(guess[1] for guess in guesses) == sorted(answer[1] for answer in answers)
    place = {answer[1]: answer.start() for answer in answers}
    assert [guess[1] for guess in guesses if guess.start() > place[guess[1]]] == []


@pytest.mark.parametrize("lab", LABS)
def test_a_quantity_in_the_text_is_the_lectures_or_has_a_source(lab):
    """What this machine measures stands in outputs only, so that the text is true on every machine."""
    bare = []
    for cell in of_type(notebook_cells(lab), "markdown"):
        whole = cell.id.startswith(("wrong-", "wait-"))
        paragraphs = [cell.source] if whole else cell.source.split("\n\n")
        bare += [(cell.id, text) for text in paragraphs if MEASURED.search(text) and not SOURCED.search(text)]
    assert bare == []


@pytest.mark.parametrize("lab", LABS)
def test_every_collapsed_box_names_its_source(lab):
    boxes = [cell for cell in of_type(notebook_cells(lab), "markdown") if "<details>" in cell.source]
    assert boxes and [cell.id for cell in boxes if not re.search(r"Source: \[[\w./-]+", cell.source)] == []


@pytest.mark.parametrize("lab", LABS)
def test_every_reported_case_is_answered_with_its_right_figures(lab):
    cells = notebook_cells(lab)
    missing = {
        case: [figure for figure in figures if figure not in cells[cell_id].source]
        for case, (cell_id, *figures) in cases(lab).ANSWERED.items()
    }
    assert missing and {case: figures for case, figures in missing.items() if figures} == {}


@pytest.mark.parametrize("lab", LABS)
def test_what_can_be_shown_is_shown(lab):
    cells, shown = notebook_cells(lab), cases(lab).SHOWN_LIVE
    assert shown.keys() <= cases(lab).ANSWERED.keys()
    assert {case: cell_id for case, cell_id in shown.items() if cells[cell_id].cell_type != "code"} == {}


@pytest.mark.parametrize("lab", LABS)
def test_the_terms_of_the_card_are_those_of_the_glossary(lab):
    glossary = {row["term"]: row["zh"] for row in rows("glossary.csv")}
    listed = TERM.findall(notebook_cells(lab)["terms"].source)[1:]
    pairs = [pair for terms, names in listed for pair in zip(terms.split(", "), names.split("、"), strict=True)]
    assert len(pairs) > 5 and {term: name for term, name in pairs if glossary.get(term) != name} == {}


def test_the_glossary_is_sorted_and_says_what_each_term_means():
    terms = [row["term"] for row in rows("glossary.csv")]
    assert terms == sorted(terms, key=str.lower) and all(row["meaning"] for row in rows("glossary.csv"))


def test_every_claim_of_the_lecture_has_a_verdict_a_figure_and_a_source():
    claims = rows("lecture_claims.csv")
    columns = {"claim_zh", "claim_en", "where", "verdict", "figure", "figure_zh", "recipe", "source", "lab"}
    assert set(claims[0]) == columns
    assert all(all(claim.values()) and claim["verdict"] in VERDICTS for claim in claims)
    sections = {re.match(r"Introduction (\d)", claim["where"])[1] for claim in claims if claim["where"].startswith("I")}
    assert sections == set("12345")
