"""`ProgressLine`: how far something is, in one line that takes the place of the one before and is gone at the end."""

from __future__ import annotations

import sys
from uuid import uuid4

from labs_utils.figures.display import in_notebook


class ProgressLine:
    """Call it with a text to show it, in a notebook or a terminal, and with "" to take it away.

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
