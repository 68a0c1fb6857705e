"""Tables: `show_table` in a notebook, `print_table` in a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from labs_utils.figures.display import in_notebook
from labs_utils.units import worded


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


def print_table(
    columns: Sequence[str], rows: Iterable[Iterable[str]], title: str = "", right: Sequence[int] = ()
) -> None:
    """Print a table in a terminal, as wide as that is; the columns numbered in `right` are aligned there."""
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(*columns, title=title or None, box=box.SIMPLE)
    for number in right:
        table.columns[number].justify = "right"
    for row in rows:
        table.add_row(*map(escape, row))
    Console().print(table)


def _are_numbers(values: Sequence) -> bool:
    """Whether there are numbers, and nothing else but gaps."""
    rest = [value for value in values if not isinstance(value, (int, float))]
    return len(rest) < len(values) and set(rest) <= {"", "none"}


def _row(cells: Sequence[str], tag: str, sides: Sequence[str]) -> str:
    aligned = zip(sides, cells, strict=True)
    row = "".join(f'<{tag} style="text-align: {side}">{_markup(cell)}</{tag}>' for side, cell in aligned)
    return f"<tr>{row}</tr>"


def _markup(cell: str) -> str:
    return escape(cell).replace("\n", "<br>")
