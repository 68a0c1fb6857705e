"""The course's text: plain, of unequal passages, with plays set apart that no training sees."""

import pytest
import torch

from labs_utils.training import corpus
from labs_utils.training.step import IGNORED_LABEL


def test_there_is_enough_to_train_on_and_to_test_with():
    assert len(corpus.text("train")) > 1.5e6 and len(corpus.text("held_out")) > 1e5


@pytest.mark.parametrize("part", corpus.PARTS)
def test_the_text_is_plain(part):
    text = corpus.text(part)
    assert text.isascii() and "\t" not in text and "\r" not in text and "\n\n\n" not in text
    assert not any(line.endswith(" ") for line in text.splitlines())
    assert not any(word in text.lower() for word in ("gutenberg", "etext", "copyright", "http"))


def test_no_long_passage_is_in_both_parts():
    train, held_out = ({passage for passage in corpus.passages(part) if len(passage) > 80} for part in corpus.PARTS)
    assert len(held_out) > 500 and not train & held_out


def test_passages_are_very_unequal():
    assert corpus.passages()[10] == "Ber.\nWho's there?\n"
    lengths = sorted(map(len, corpus.passages()))
    assert 4 * lengths[len(lengths) // 10] < lengths[9 * len(lengths) // 10]


def test_windows_are_the_running_text():
    windows = corpus.windows(100)
    assert windows.shape == (len(corpus.text()) // 100, 100) and windows.max() < corpus.VOCABULARY
    assert bytes(windows[:3].flatten().tolist()).decode() == corpus.text()[:300]


def test_padding_is_on_the_right_and_ignored():
    batch = corpus.padded(["Ber.\n", "Francisco at his post\n"], longest=9)
    assert batch["input_ids"].shape == batch["labels"].shape == (2, 9)
    assert torch.equal(batch["labels"][1], batch["input_ids"][1])
    assert batch["labels"][0].tolist() == [*b"Ber.\n"] + [IGNORED_LABEL] * 4
    assert batch["input_ids"][0, 5:].tolist() == [0] * 4
