"""The course's own text, plays by Shakespeare, as tokens: a byte is a token, so there is no tokenizer to download."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch

from labs_utils.device import DATA
from labs_utils.training.step import IGNORED_LABEL

VOCABULARY = 256
PARTS = ("train", "held_out")


@cache
def text(part: str = "train") -> str:
    """Whole plays one after another; those of the part "held_out" are for testing, and never for training."""
    return (DATA / "corpus" / f"{part}.txt").read_text("ascii")


def passages(part: str = "train") -> list[str]:
    """The text cut at empty lines: mostly a speech under its speaker's name, from a few bytes to a few thousand.

    >>> passages()[10]
    "Ber.\\nWho's there?\\n"
    """
    return [passage.strip("\n") + "\n" for passage in text(part).split("\n\n")]


def windows(length: int, part: str = "train") -> torch.Tensor:
    """The running text in rows of `length` tokens, shape (rows, length); a rest shorter than that is left out."""
    tokens = torch.frombuffer(bytearray(text(part), "ascii"), dtype=torch.uint8).long()
    return tokens[: len(tokens) // length * length].view(-1, length)


def padded(texts: Sequence[str], longest: int) -> dict[str, torch.Tensor]:
    """A batch of texts of unequal lengths: `input_ids` and `labels` of shape (texts, length of the longest one).

    Texts are cut to `longest` tokens, filled up with zeros on the right, and labelled -100 there, which every loss
    ignores. No mask is needed: under causal attention no token looks to the right.
    """
    rows = [torch.tensor(list(text.encode("ascii")[:longest])) for text in texts]
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    labels = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=IGNORED_LABEL)
    return {"input_ids": ids, "labels": labels}
