"""`show`: the one way a figure gets into a notebook, with its alt text."""

from __future__ import annotations

import sys
from io import BytesIO

DPI = 150
CSS_PIXELS_PER_INCH = 96


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
