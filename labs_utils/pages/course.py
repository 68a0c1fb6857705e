"""The labs of a folder as a course: what their pages are called, what stands before and after, and an index of all."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell, new_notebook


class Link(NamedTuple):
    """A link of a page: its place ("prev", "index", "next"), the page, what is shown, and the whole title."""

    place: str
    page: str
    text: str
    title: str


def page_name(stem: str, staff: bool = False) -> str:
    """The file of a page, such as "01_x.html"; a staff page is "01_x.staff.html", so that the two can't be confused."""
    return f"{stem}.staff.html" if staff else f"{stem}.html"


def links(path: Path, titles: dict[Path, str], staff: bool = False) -> list[Link]:
    """Links from the page of `path` to the lab before it in `titles`, to the index, and to the lab after it."""

    def to(place: str, near: Path) -> Link:
        return Link(place, page_name(near.stem, staff), titles[near].partition(":")[0], titles[near])

    paths = list(titles)
    here = paths.index(path)
    before = [to("prev", near) for near in paths[:here][-1:]]
    after = [to("next", near) for near in paths[here + 1 :][:1]]
    return [*before, Link("index", page_name("index", staff), "All labs", "All labs"), *after]


def title_of(notebook: NotebookNode) -> str | None:
    """The notebook's first top heading as plain text, or None."""
    heading = _first_match(notebook, r"^# +(.+)$")
    return heading and re.sub(r"[*`]", "", heading).strip()


def index_of(labs: Sequence[tuple[str, NotebookNode]]) -> NotebookNode:
    """A notebook of text that lists pages, given as (file name, notebook), each with its card's question and time."""
    entries = [_entry(page, notebook) for page, notebook in labs]
    return new_notebook(cells=[new_markdown_cell("\n\n".join(["# All labs", *entries]))])


def _entry(page: str, notebook: NotebookNode) -> str:
    question = _first_match(notebook, r"^\*\*(.+)\*\*$") or ""
    time = _first_match(notebook, r"^\| *Time *\| *(.+?) *\|$")
    parts = [f"**[{title_of(notebook) or page}]({page})**", question, f"Time: {time}." if time else ""]
    return "- " + "\n\n  ".join(filter(None, parts))


def _first_match(notebook: NotebookNode, pattern: str) -> str | None:
    """What the pattern's group is in the first cell of text that has it."""
    texts = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    return next((found[1] for text in texts if (found := re.search(pattern, text, re.MULTILINE))), None)
