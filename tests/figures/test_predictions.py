"""Guesses before, measurements after: what is kept, drawn and said."""

import sys

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

from labs_utils import LLAMA_8B, Run, predict, reveal
from labs_utils.answer import Answer
from labs_utils.figures import display
from labs_utils.figures.predictions import Prediction, _figure
from labs_utils.pages.marks import ANSWER, QUESTION


def said(capsys, guess, answer, unit="", answer_unit=None):
    predict("lab90.guess", guess, unit)
    capsys.readouterr()
    reveal("lab90.guess", answer, answer_unit)
    return capsys.readouterr().out.strip()


def test_a_question_names_its_unit_and_the_guess_is_repeated(capsys):
    predict("lab90.guess", 128, "GB", "How much is needed?")
    assert capsys.readouterr().out == "How much is needed? (in GB) Your guess: 128 GB (119.2 GiB).\n"
    predict("lab90.time_8b", 2, "s")
    assert capsys.readouterr().out == "time 8b? (in seconds) Your guess: 2 s.\n"


def test_only_the_first_blank_guess_is_told_that_it_is_fine(capsys, monkeypatch):
    monkeypatch.setattr(display, "_first", {})
    for prediction_id in ("lab90.first", "lab90.second", "lab90.first"):  # a cell may be run again
        predict(prediction_id, ..., question="How long?")
    fine = "How long? No guess yet, which is fine."
    assert capsys.readouterr().out.splitlines() == [fine, "How long?", fine]


@pytest.mark.parametrize(
    "guess, answer, words",
    [
        (100, 100, "Measured: 100 s. Your guess: 100 s, spot on."),
        (95, 100, "Measured: 100 s. Your guess: 95 s, within 6 %: well judged."),
        (50, 100, "Measured: 100 s. Your guess: 50 s, 2 times too small; what makes the difference?"),
        (12345, 1, "Measured: 1 s. Your guess: 12,345 s, 12,345 times too large; what makes the difference?"),
        (0, 3, "Measured: 3 s. Your guess: 0 s."),
        (0, 0, "Measured: 0 s. Your guess: 0 s, spot on."),
    ],
)
def test_the_difference_is_a_factor(capsys, guess, answer, words):
    assert said(capsys, guess, answer, "s") == words


@pytest.mark.parametrize("blank", [None, ...])
def test_a_blank_guess_shows_only_the_answer(capsys, blank):
    assert said(capsys, blank, 3, "GiB") == "Measured: 3 GiB."


def test_an_answer_without_a_guess_repeats_its_question(capsys):
    predict("lab90.guess", None, "s", "How long?")
    capsys.readouterr()
    reveal("lab90.guess", 3)
    assert capsys.readouterr().out == "How long? Measured: 3 s.\n"


def test_a_reveal_without_a_guess_shows_only_the_answer(capsys):
    reveal("lab90.never_predicted", 7)
    assert capsys.readouterr().out == "Measured: 7.\n"


def test_the_answer_may_come_in_another_unit_of_the_same_kind(capsys):
    assert said(capsys, 2, 2**31, "GiB", "B").startswith("Measured: 2 GiB. Your guess: 2 GiB, spot on")
    assert said(capsys, 1500, 1.5, "ms", "s").startswith("Measured: 1,500 ms")


def test_an_answer_shows_its_peak_under_its_methods_name(capsys):
    answer = Answer(run=Run(model=LLAMA_8B), method="dry_run", device="cpu", peak_bytes=64_000_000_000)
    assert said(capsys, 128, answer, "GB").startswith("Dry run: 64 GB (59.6 GiB). Your guess: 128 GB (119.2 GiB), 2 ti")
    reveal("lab90.never_predicted", answer)
    assert capsys.readouterr().out == "Dry run: 59.6 GiB.\n"


def test_an_answer_without_a_peak_says_why(capsys):
    reason = {"reason": "needs CUDA"}
    answer = Answer(run=Run(), method="measure", outcome="unsupported", provenance=reason)
    assert said(capsys, 1, answer, "GB") == "There is no peak to show (unsupported): needs CUDA."


@pytest.mark.parametrize("guess", ["128", float("nan"), float("inf"), -1, True, [128], 1j])
def test_a_guess_that_is_no_number_is_answered_by_a_sentence(capsys, guess):
    predict("lab90.bad", guess, "GB")
    assert capsys.readouterr().out.startswith("A guess is a number of 0 or more, not ")


@pytest.mark.parametrize("unit", ["Gb", "parsecs", None, 5])
def test_an_unknown_unit_is_answered_by_a_sentence_that_lists_the_known_ones(capsys, unit):
    predict("lab90.bad", 1, unit)
    assert "use one of tokens, B, kB, MB, GB, KiB, MiB, GiB, s, ms" in capsys.readouterr().out


def test_answer_and_guess_of_different_kinds_are_answered_by_a_sentence(capsys):
    assert said(capsys, 1, 1, "GB", "s") == "The answer is in s and the guess in GB."
    assert said(capsys, 1, "many", "GB").startswith("The answer is a number of 0 or more")


def test_the_guess_is_hatched_and_every_bar_is_labelled():
    prediction = Prediction("lab01.total_8b", 128.0, "GB", "How much is needed?")
    axes = _figure(prediction, 64.0, "measured").axes[0]
    assert axes.get_title("left") == "How much is needed?"
    assert [label.get_text() for label in axes.get_yticklabels()] == ["measured", "your guess"]
    assert [bar.get_hatch() for bar in axes.patches] == [None, "//"]
    assert [text.get_text() for text in axes.texts] == ["64 GB (59.6 GiB)", "128 GB (119.2 GiB)"]


def test_a_figure_without_a_question_names_the_quantity():
    assert (
        _figure(Prediction("lab01.total_8b", 1.0, "GB", ""), 64.0, "measured").axes[0].get_title("left") == "total 8b"
    )


@pytest.fixture(scope="module")
def cells():
    sources = [
        "from labs_utils import predict, reveal",
        'predict("lab01.total_8b", 128, "GB", "How much for <8B>?")',
        'reveal("lab01.total_8b", 64)',
        'predict("lab01.blank", ...)',
        'reveal("lab01.blank", 7)',
    ]
    notebook = NotebookClient(new_notebook(cells=[new_code_cell(source) for source in sources])).execute()
    assert nbformat.validate(notebook) is None
    return notebook.cells


def test_the_notebook_keeps_the_guess_for_people_and_for_programs(cells):
    (output,) = cells[1].outputs
    markup = "<p><strong>How much for &lt;8B&gt;? (in GB)</strong> Your guess: 128 GB (119.2 GiB).</p>"
    assert output.data["text/html"] == markup
    question = "How much for <8B>?"
    assert output.data[QUESTION] == {"id": "lab01.total_8b", "value": 128.0, "unit": "GB", "question": question}


def test_the_notebook_shows_one_picture_with_alt_text_and_the_answer(cells):
    picture, sentence = cells[2].outputs
    assert picture.metadata["image/png"]["alt"].startswith("Bar chart. Measured: 64 GB (59.6 GiB). Your guess: 128 GB")
    assert 300 < picture.metadata["image/png"]["width"] < 800
    assert sentence.data["text/plain"].startswith("Measured: 64 GB")
    assert sentence.data[ANSWER] == {"id": "lab01.total_8b", "value": 64.0, "unit": "GB", "method": "measured"}


def test_without_a_guess_an_answer_is_a_line_of_text_and_no_picture(cells):
    (sentence,) = cells[4].outputs
    assert "image/png" not in sentence.data and sentence.data["text/plain"] == "Measured: 7."


def test_outside_a_notebook_nothing_is_drawn_and_pyplot_is_not_needed(capsys):
    predict("lab90.guess", 1)
    reveal("lab90.guess", 2)
    assert "2 times too small" in capsys.readouterr().out and "matplotlib.pyplot" not in sys.modules
