"""Tables in a notebook, and numbers and bytes in words: `show_table`, `worded`, `worded_bytes`, `scale`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from labs_utils.figures.display import in_notebook


def show_table(columns: Sequence[str], rows: Iterable[Sequence]) -> None:
    """Display rows under the names of their columns; columns of numbers (and "none") are aligned on the right.

    Outside a notebook the table is printed.
    """
    rows = list(rows)
    lines = [[worded(value) for value in row] for row in rows]
    plain = "\n".join("  ".join(line) for line in [columns, *lines])
    if not in_notebook():
        print(plain)
        return
    from IPython.display import display

    sides = ["right" if _are_numbers(values) else "left" for values in zip(*rows, strict=True)]
    body = "".join(_row(line, "td", sides) for line in lines)
    markup = f"<table><thead>{_row(columns, 'th', sides)}</thead><tbody>{body}</tbody></table>"
    display({"text/html": markup, "text/plain": plain}, raw=True)


def worded(value: Any) -> str:
    """A value as a reader wants it: 1,234,567 or 0.1234, and anything else as `str` has it."""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def worded_bytes(nbytes: int) -> str:
    """Bytes in GiB, or in MiB, KiB or bytes where there are few: "60.0 GiB"."""
    size, unit = scale(nbytes)
    return f"{nbytes / size:,.{2 if nbytes < 10 * size else 1}f} {unit}" if nbytes >= 2**10 else f"{nbytes} bytes"


def scale(largest: int) -> tuple[int, str]:
    """The unit for a figure whose largest number is `largest` bytes: its size and its name."""
    return (2**30, "GiB") if largest >= 2**30 else (2**20, "MiB") if largest >= 2**20 else (2**10, "KiB")


def _are_numbers(values: Sequence) -> bool:
    """Whether there are numbers, and nothing else but gaps."""
    rest = [value for value in values if not isinstance(value, (int, float))]
    return len(rest) < len(values) and set(rest) <= {"", "none"}


def _row(cells: Sequence[str], tag: str, sides: Sequence[str]) -> str:
    aligned = zip(sides, cells, strict=True)
    row = "".join(f'<{tag} style="text-align: {side}">{escape(cell)}</{tag}>' for side, cell in aligned)
    return f"<tr>{row}</tr>"
