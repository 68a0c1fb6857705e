"""`lecture_said`: what the lecture claims that a lab has looked at, and how each claim fared, in English and 中文."""

from __future__ import annotations

import csv

from labs_utils.device import DATA
from labs_utils.figures.tables import show_table

VERDICTS = {
    "holds": "成立",
    "holds with a condition": "有條件成立",
    "loose": "不夠精確",
    "wrong": "不成立",
}
COLUMNS = ("the lecture said 講義", "verdict 判定", "what the labs found 結果", "recipe 配方")


def lecture_said(lab: str) -> None:
    """Show the claims of `data/lecture_claims.csv` that belong to `lab`, such as "01"."""
    rows = [(_both(each, "claim"), _verdict(each), _both(each, "figure"), each["recipe"]) for each in claims(lab)]
    show_table(COLUMNS, rows)


def claims(lab: str | None = None) -> list[dict[str, str]]:
    """The rows of `data/lecture_claims.csv`, all or those of one lab, in the lecture's order."""
    with open(DATA / "lecture_claims.csv", encoding="utf-8", newline="") as file:
        return [row for row in csv.DictReader(file) if lab in (None, row["lab"])]


def _verdict(claim: dict[str, str]) -> str:
    return f"{claim['verdict']}\n{VERDICTS[claim['verdict']]}"


def _both(claim: dict[str, str], what: str) -> str:
    """The English words over the Chinese ones; the figure's are `figure` and `figure_zh`."""
    english, chinese = claim.get(f"{what}_en", claim.get(what)), claim[f"{what}_zh"]
    return f"{english}\n{chinese}"
