"""`diagram`: a drawing of a mechanism, from `svg/`, with its alternative text; it has a dark style of its own."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

from labs_utils.figures.display import in_notebook

FOLDER = Path(__file__).parent / "svg"
MIME = "image/svg+xml"


def diagram(name: str) -> None:
    """Display the drawing of that name, such as "zero-stages". Outside a notebook its words are printed.

    Raises:
        ValueError: one sentence with the names that are known.
    """
    drawing = svg(name)
    if not in_notebook():
        print(alt(drawing))
        return
    from IPython.display import display

    display({MIME: drawing, "text/plain": alt(drawing)}, raw=True, metadata={MIME: {"alt": alt(drawing)}})


def svg(name: str) -> str:
    """The drawing of that name. Raises `ValueError` where there is none."""
    known = {path.stem: path for path in sorted(FOLDER.glob("*.svg"))}
    if name not in known:
        raise ValueError(f"{name!r} is not a diagram; known: {', '.join(known)}")
    return known[name].read_text("utf-8")


def alt(drawing: str) -> str:
    """What a drawing asks and shows, in words: its title and its description."""
    return unescape(" ".join(re.findall(r"<(?:title|desc)>(.*?)</", drawing, re.DOTALL)))
