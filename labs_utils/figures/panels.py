"""Figures that lay runs side by side: `plot_timelines` with a panel each, `plot_points` and `plot_point_panels`."""

from __future__ import annotations

from collections.abc import Mapping

from labs_utils.answer import PHASES
from labs_utils.figures.display import show
from labs_utils.figures.step_area import STEP_LABEL, draw_step
from labs_utils.figures.style import LEGEND, METHOD_LABELS, THING_LOOKS, new_axes, part_legend, wrapped
from labs_utils.timeline import Timeline
from labs_utils.units import unit_of, worded, worded_bytes

Point = tuple[float, float]
PANEL_INCHES = 1.75


def plot_timelines(timelines: Mapping[str, Timeline], title: str, phases: tuple[str, ...] = PHASES) -> None:
    """Draw the live bytes of several steps by part, one panel for each label, all on one scale."""
    peaks = {label: timeline.peak(*phases) for label, timeline in timelines.items()}
    in_words = "; ".join(
        f"{label}: peak {worded_bytes(peak.live_bytes)} in {peak.event.phase}" for label, peak in peaks.items()
    )
    show(timelines_figure(timelines, title, phases), f"{title} Stacked areas over {', '.join(phases)}. {in_words}.")


def plot_points(
    points: Mapping[str, Point | None], title: str, xlabel: str, ylabel: str, method: str = "measure"
) -> None:
    """Draw one marker (x, y) for each label, hollow if `method` is "recall"; None keeps a label's look for later."""
    plot_point_panels({"": points}, title, xlabel, ylabel, method)


def plot_point_panels(
    panels: Mapping[str, Mapping[str, Point | None]], title: str, xlabel: str, ylabel: str, method: str = "measure"
) -> None:
    """Draw `plot_points` for each panel, all on one scale; a label looks the same in all of them."""
    in_words = "; ".join(
        f"{name}: {_points_in_words(points)}" if name else _points_in_words(points) for name, points in panels.items()
    )
    show(points_figure(panels, title, xlabel, ylabel, method), f"{title} {ylabel} against {xlabel}. {in_words}.")


def _points_in_words(points: Mapping[str, Point | None]) -> str:
    return ", ".join(f"{label} {worded(float(p[0]))} and {worded(float(p[1]))}" for label, p in points.items() if p)


def timelines_figure(timelines: Mapping[str, Timeline], title: str, phases: tuple[str, ...] = PHASES):
    """The figure of `plot_timelines`."""
    steps = {label: list(timeline.moments(phases)) for label, timeline in timelines.items()}
    top_bytes = max(moment.live_bytes for step in steps.values() for moment in step)
    size, unit = unit_of(top_bytes)
    figure = panel_figure(len(steps), title)
    panels = figure.subplots(len(steps), 1, sharey=True, squeeze=False)[:, 0]
    heights: dict[str, float] = {}
    for axes, (label, step) in zip(panels, steps.items(), strict=True):
        axes.set_title(label, loc="left", fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
        for part, height in draw_step(axes, step, size, top_bytes, low=True).items():
            heights[part] = max(height, heights.get(part, 0))
    panels[-1].set_xlabel(STEP_LABEL)
    panels[len(steps) // 2].set_ylabel(f"memory ({unit})")
    part_legend(panels[0], heights)
    return figure


def panel_figure(rows: int, title: str):
    """A figure for so many rows of panels, with a title over all of them."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2, 1.4 + PANEL_INCHES * rows), layout="constrained")
    figure.suptitle(wrapped(title, 46), x=0.02, ha="left", fontsize=12, weight="bold")
    return figure


def points_figure(
    panels: Mapping[str, Mapping[str, Point | None]], title: str, xlabel: str, ylabel: str, method: str = "measure"
):
    """The figure of `plot_point_panels`."""
    labels = dict.fromkeys(label for points in panels.values() for label in points)
    looks, drawn = dict(zip(labels, THING_LOOKS, strict=False)), {}
    figure, every = _panels(len(panels), title, xlabel, ylabel)
    for axes, (name, points) in zip(every, panels.items(), strict=True):
        if name:
            axes.set_title(name, loc="left", fontsize=10)
        axes.grid(alpha=0.3)
        axes.margins(0.15)
        for label, point in points.items():
            if point:
                drawn[label] = _draw_point(axes, point, *looks[label], method)
    shown = [label for label in labels if label in drawn]
    handles = [drawn[label] for label in shown]
    figure.legend(handles, shown, ncols=2, title=METHOD_LABELS[method], alignment="left", **LEGEND)
    return figure


def _panels(count: int, title: str, xlabel: str, ylabel: str) -> tuple:
    """A figure and its axes: one, or two in a row, on one scale."""
    if count == 1:
        axes = new_axes(title, xlabel, ylabel)
        return axes.figure, [axes]
    rows = -(-count // 2)
    figure = panel_figure(rows, title)
    figure.supylabel(ylabel, fontsize=10)
    every = list(figure.subplots(rows, 2, sharex=True, sharey=True).flat)
    for axes in every[count:]:
        axes.remove()
    for axes in every[:count]:
        axes.spines[["top", "right"]].set_visible(False)
    for axes in every[max(0, count - 2) : count]:  # the lowest of each column
        axes.set_xlabel(xlabel)
        axes.xaxis.set_tick_params(labelbottom=True)
    return figure, every[:count]


def _draw_point(axes, point: Point, colour: str, marker: str, method: str):
    """Draw a marker; it is returned, for the legend."""
    hollow = {"markerfacecolor": "white"} if method == "recall" else {}
    (line,) = axes.plot(*point, marker, color=colour, markersize=8, markeredgewidth=1.8, **hollow)
    return line
