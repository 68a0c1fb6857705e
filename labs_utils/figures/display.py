"""What a notebook shows: figures with alt text, lines for people and programs, and how far something is."""

from __future__ import annotations

import sys
from io import BytesIO
from uuid import uuid4

DPI = 150
CSS_PIXELS_PER_INCH = 96
_first: dict[str, str] = {}


def in_notebook() -> bool:
    """Whether this process is a Jupyter kernel; asks IPython only where something else has imported it."""
    ipython = sys.modules.get("IPython")
    return bool(ipython and getattr(ipython.get_ipython(), "kernel", None))


def show(figure, alt: str) -> None:
    """Display a matplotlib figure as a PNG with alternative text, at its own size, and close it.

    Outside a notebook it is only closed.
    """
    if in_notebook():
        from IPython.display import Image, display

        picture = BytesIO()
        figure.savefig(picture, format="png", dpi=DPI, bbox_inches="tight")
        pixels_wide = int.from_bytes(picture.getvalue()[16:20], "big")  # after cropping; PNG's IHDR chunk
        display(Image(picture.getvalue(), width=round(pixels_wide * CSS_PIXELS_PER_INCH / DPI), alt=alt))
    if pyplot := sys.modules.get("matplotlib.pyplot"):
        pyplot.close(figure)


def show_line(plain: str, markup: str, mime: str, record: dict) -> None:
    """Display one line of text, with a record for programs under a MIME type of its own. Outside a notebook: print it.

    `markup` is the line as HTML.
    """
    if not in_notebook():
        print(plain)
        return
    from IPython.display import display

    display({"text/plain": plain, "text/html": markup, mime: record}, raw=True)


def is_first(remark: str, who: str) -> bool:
    """Whether `who` is the first in this process to make a remark: it is made once, and again where they come again.

    >>> [is_first("an example", who) for who in ("lab01.peak", "lab01.time", "lab01.peak")]
    [True, False, True]
    """
    return _first.setdefault(remark, who) == who


class ProgressLine:
    """One line that takes the place of the one before, and is gone at the end.

    Call it with a text to show it, in a notebook or a terminal, and with "" to take it away.

    Where neither is there (a file, a pipe) nothing is shown.
    """

    def __init__(self):
        self._display_id: str | None = None

    def __call__(self, text: str) -> None:
        if in_notebook():
            self._display(text)
        elif sys.stderr.isatty():
            print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)

    def _display(self, text: str) -> None:
        from IPython.display import display

        shown_before = self._display_id is not None
        self._display_id = self._display_id or uuid4().hex
        if text or shown_before:
            display({"text/plain": text}, raw=True, display_id=self._display_id, update=shown_before)
