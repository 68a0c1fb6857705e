"""How figures look: a colour and a hatch for each part, other colours for all else, hollow dashes for recordings."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

UNKNOWN = "parts not known"
# The lecture's colours, kept apart in lightness for colour-blind readers; and a hatch for each.
LOOKS = {
    "parameters": ("#5b2a86", ""),
    "gradients": ("#d1332e", "\\\\\\"),
    "optimizer_states": ("#8fd694", "///"),
    "activations": ("#f6a02d", "..."),
    "logits": ("#b57f00", "xxx"),
    "buffers": ("#8a8a8a", "|||"),
    "workspace": ("#d4d4d4", "---"),
    UNKNOWN: ("#a9bcd0", "+++"),
}
METHOD_LABELS = {"estimate": "estimated", "dry_run": "dry run", "measure": "measured", "recall": "recorded"}
LEGEND = {"loc": "outside lower left", "frameon": False, "fontsize": 9, "columnspacing": 1.2}
LIMIT_STYLE = {"color": "black", "linestyle": ":"}
# What isn't a part has colours of its own, and a marker for each: neither alone tells things apart.
THING_LOOKS = (
    ("#1b6ca8", "o"), ("#c2478d", "s"), ("#0f9d8a", "^"), ("#333333", "D"), ("#7fb3e6", "v"), ("#6b7b1f", "P"),
    ("#7a4b2a", "X"), ("#9fb8ad", "*"),
)  # fmt: skip


def part_style(part: str, method: str) -> dict[str, Any]:
    """How a bar or an area of `part` is drawn: filled, or hollow and dashed where it was recorded elsewhere."""
    colour, hatch = LOOKS[part]
    if method == "recall":
        return {"facecolor": "white", "edgecolor": colour, "linestyle": "--", "linewidth": 1.6, "hatch": hatch}
    filled = {"facecolor": colour, "edgecolor": "white", "linestyle": "-", "linewidth": 0.5, "hatch": hatch}
    return filled | {"alpha": 0.6} if method == "dry_run" else filled


def curve_style(number: int, method: str) -> dict[str, Any]:
    """How the curve with that number is drawn: a line with markers, small ones where it was estimated.

    A dry run is dotted, and what was recorded elsewhere is hollow and dashed, around any other marker.
    """
    colour, marker = THING_LOOKS[number % len(THING_LOOKS)]
    line = {"color": colour, "marker": marker, "markersize": 6, "linestyle": "-"}
    changes = {
        "estimate": {"markersize": 3.5},
        "dry_run": {"linestyle": ":", "marker": "x"},
        "recall": {"markersize": 10, "linestyle": "--", "markerfacecolor": "white", "zorder": 1.9},
    }
    return line | changes.get(method, {})


def new_axes(title: str, xlabel: str, ylabel: str):
    """Axes of a new figure, narrow enough for a phone."""
    from matplotlib.figure import Figure

    axes = Figure(figsize=(5.2, 4.1), layout="constrained").add_subplot(xlabel=xlabel, ylabel=ylabel)
    axes.set_title(wrapped(title, 46), loc="left", fontsize=12, weight="bold")
    axes.spines[["top", "right"]].set_visible(False)
    return axes


def interval_style(number: int, recorded: bool) -> dict[str, Any]:
    """How the intervals with that number are drawn: filled, or hollow where they were recorded elsewhere."""
    colour, hatch = THING_LOOKS[number % len(THING_LOOKS)][0], [*LOOKS.values()][number % len(LOOKS)][1]
    if recorded:
        return {"facecolor": "white", "edgecolor": colour, "linestyle": "--", "linewidth": 1.6, "hatch": hatch}
    return {"facecolor": colour, "edgecolor": "white", "linewidth": 0.5, "hatch": hatch}


def schedule_legend(axes, styles: Mapping[str, Mapping]) -> None:
    """A legend below the axes of what goes on in them."""
    from matplotlib.patches import Patch

    patches = [Patch(label=name, **style) for name, style in styles.items()]
    axes.figure.legend(handles=patches, ncols=3, handleheight=1.3, **LEGEND)


def wrapped(text: str, width: int) -> str:
    """The text in lines of at most `width` characters, a longer word apart."""
    return "\n".join(textwrap.fill(line, width, break_long_words=False) for line in text.splitlines())


def part_legend(axes, heights: Mapping[str, float]) -> None:
    """A legend below the axes, of the lines and of the parts whose greatest height is large enough to be seen."""
    from matplotlib.patches import Patch

    seen = [part for part, height in heights.items() if height > axes.get_ylim()[1] / 500]
    patches = [Patch(label=part.replace("_", " "), **part_style(part, "estimate")) for part in seen]
    lines = axes.get_legend_handles_labels()[0]
    axes.figure.legend(handles=patches + lines, ncols=3, handleheight=1.3, **LEGEND)
