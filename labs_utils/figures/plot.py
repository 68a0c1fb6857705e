"""Figures of answers and timelines: `compare`, `plot_parts`, `plot_timeline`, `plot_curves`.

A figure asks its question in its title. What was recorded on another machine is drawn hollow and dashed, and named so;
what this machine measured, dry-ran or estimated is drawn filled (`labs_utils.figures.style`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from labs_utils.answer import PHASES, Answer
from labs_utils.device import Device
from labs_utils.figures.display import show
from labs_utils.figures.step_area import STEP_LABEL, draw_step
from labs_utils.figures.style import (
    LEGEND,
    LIMIT_STYLE,
    LOOKS,
    METHOD_LABELS,
    UNKNOWN,
    curve_style,
    interval_style,
    new_axes,
    part_legend,
    part_style,
    schedule_legend,
    wrapped,
)
from labs_utils.figures.tables import show_table
from labs_utils.timeline import Timeline
from labs_utils.units import unit_of, worded, worded_bytes

COLUMNS = ("method", "device", "outcome", "peak", "phase")


class Curve(NamedTuple):
    """Points {x: y} under a label, drawn as their `method` is: that of an `Answer`, or "" for mere arithmetic."""

    label: str
    points: Mapping[float, float]
    method: str = "measure"

    @property
    def is_limit(self) -> bool:
        """Whether it is the same arithmetic everywhere, such as a device's memory."""
        return not self.method and len(self.points) > 1 and len(set(self.points.values())) == 1

    def __str__(self) -> str:
        return f"{self.label} ({METHOD_LABELS[self.method]})" if self.method else self.label


class Interval(NamedTuple):
    """The time in which something runs: from `begin` to `end`, in seconds."""

    name: str
    begin: float
    end: float

    def __str__(self) -> str:
        return f"{self.name} from {worded(float(self.begin))} to {worded(float(self.end))} s"


def compare(*answers: Answer, title: str = "How much memory does this run need?") -> None:
    """Show a row of a table and a bar of a figure for each answer, with what sets their runs apart."""
    fields = _varying_fields(answers)
    show_table((*["run"] * bool(fields), *COLUMNS), [_row(answer, fields) for answer in answers])
    _show_parts(["\n".join([*_settings(answer, fields), _source(answer)]) for answer in answers], answers, title)


def plot_parts(
    bars: Mapping[str, Answer | Mapping[str, int]], title: str, xlabel: str = "", device: Device | None = None
) -> None:
    """Draw one stacked bar for each label: an answer's parts, or bytes by part. `device` adds a line at its memory."""
    _show_parts(list(bars), list(bars.values()), title, xlabel, device)


def plot_timeline(timeline: Timeline, title: str, phases: tuple[str, ...] = PHASES) -> None:
    """Draw the live bytes of a step by part, event by event, with its phases and its peak."""
    peak = timeline.peak(*phases)
    where = f"Stacked area over the phases {', '.join(phases)}; the peak is in {peak.event.phase}"
    show(timeline_figure(timeline, title, phases), f"{title} {where}: {_worded_parts(peak.parts)}.")


def plot_curves(curves: Sequence[Curve], title: str, xlabel: str, ylabel: str, log: bool | str = False) -> None:
    """Draw a line with markers for each curve; `log` makes both axes logarithmic, "x" only that one (in doublings).

    Curves of one label have one colour: the same thing, found by two methods.
    """
    ends = "; ".join(f"{curve} from {_end(curve, min)} to {_end(curve, max)}" for curve in curves)
    show(curves_figure(curves, title, xlabel, ylabel, log), f"{title} Line chart of {ylabel} by {xlabel}: {ends}.")


def plot_schedule(lanes: Mapping[str, Sequence[Interval]], title: str, recorded: bool = False) -> None:
    """Draw for each label of `lanes` what it does when: who works, and who waits.

    What is `recorded` is drawn hollow.
    """
    in_words = "; ".join(
        f"{label}: {', '.join(map(str, intervals)) or 'nothing'}" for label, intervals in lanes.items()
    )
    show(schedule_figure(lanes, title, recorded), f"{title} Lanes over time. {in_words}.")


def schedule_figure(lanes: Mapping[str, Sequence[Interval]], title: str, recorded: bool = False):
    """The figure of `plot_schedule`."""
    axes = new_axes(title, "seconds", "")
    names = list(dict.fromkeys(interval.name for intervals in lanes.values() for interval in intervals))
    styles = {name: interval_style(number, recorded) for number, name in enumerate(names)}
    for position, intervals in enumerate(lanes.values()):
        for name, begin, end in intervals:
            axes.barh(position, end - begin, 0.6, begin, **styles[name])
    axes.set_yticks(range(len(lanes)), [wrapped(label, 14) for label in lanes])
    axes.invert_yaxis()
    axes.grid(axis="x", alpha=0.3)
    schedule_legend(axes, styles)
    return axes.figure


def parts_figure(labels: Sequence[str], values: Sequence, title: str, xlabel: str = "", device: Device | None = None):
    """The figure of `plot_parts`."""
    stacks = [bytes_by_part(value) for value in values]
    size, unit = unit_of(max(sum(stack.values()) for stack in stacks))
    axes = new_axes(title, xlabel, f"memory ({unit})")
    for position, (value, stack) in enumerate(zip(values, stacks, strict=True)):
        _draw_stack(axes, position, value, stack, size)
    if device and device.memory_bytes:
        axes.axhline(device.memory_bytes / size, color="black", linestyle=":", label=f"memory of one {device.name}")
    axes.set_xticks(range(len(labels)), [wrapped(label, 48 // len(labels)) for label in labels])
    axes.margins(y=0.27)  # room for the notes above the bars
    part_legend(axes, {part: max(stack.get(part, 0) for stack in stacks) / size for part in LOOKS})
    return axes.figure


def bytes_by_part(value: Answer | Mapping[str, int]) -> dict[str, int]:
    """What a bar is made of; an answer that doesn't know its parts is one piece, and one without bytes is nothing."""
    if not isinstance(value, Answer):
        return dict(value)
    return value.parts or ({} if value.peak_bytes is None else {UNKNOWN: value.peak_bytes})


def timeline_figure(timeline: Timeline, title: str, phases: tuple[str, ...] = PHASES):
    """The figure of `plot_timeline`."""
    step = list(timeline.moments(phases))
    top_bytes = max(moment.live_bytes for moment in step)
    size, unit = unit_of(top_bytes)
    axes = new_axes(title, STEP_LABEL, f"memory ({unit})")
    part_legend(axes, draw_step(axes, step, size, top_bytes))
    return axes.figure


def curves_figure(curves: Sequence[Curve], title: str, xlabel: str, ylabel: str, log: bool | str = False):
    """The figure of `plot_curves`."""
    axes, labels = new_axes(title, xlabel, ylabel), list(dict.fromkeys(curve.label for curve in curves))
    for curve in curves:
        points, number = sorted(curve.points.items()), labels.index(curve.label)
        style = LIMIT_STYLE if curve.is_limit else curve_style(number, curve.method)
        axes.plot(*zip(*points, strict=True), label=str(curve), **style)
    if log:
        xs = sorted({x for curve in curves for x in curve.points})
        axes.set(xscale="log")
        axes.set_xticks(xs, [f"{x // 1024}k" if x >= 1024 else f"{x:g}" for x in xs], minor=False)
        axes.set_xticks([], minor=True)
    if log and log != "x":
        from matplotlib.ticker import LogFormatter

        axes.set(yscale="log")
        axes.yaxis.set_major_formatter("{x:,g}")
        axes.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(1, 0.4)))  # within a decade, 2 and 5 help
    axes.grid(alpha=0.3)
    axes.figure.legend(ncols=2, **LEGEND)
    return axes.figure


def _show_parts(labels: Sequence[str], values: Sequence, title: str, *rest) -> None:
    bars = zip(labels, map(bytes_by_part, values), strict=True)
    alt = "; ".join(f"{' '.join(label.split())}: {_worded_parts(stack)}" for label, stack in bars)
    show(parts_figure(labels, values, title, *rest), f"{title} Bar chart. {alt}.")


def _draw_stack(axes, position: int, value: Answer | Mapping, stack: dict[str, int], size: int) -> None:
    answered, bottom = isinstance(value, Answer), 0.0
    for part in (part for part in LOOKS if stack.get(part)):
        style = part_style(part, value.method if answered else "estimate")
        axes.bar(position, stack[part] / size, 0.7, bottom, **style)
        bottom += stack[part] / size
    notes = [f"{bottom:,.{1 if bottom < 1000 else 0}f}"] if stack else []
    notes += [wrapped(value.outcome, 8)] if answered and value.outcome != "ok" else []
    place = {"textcoords": "offset points", "ha": "center", "bbox": {"color": "white", "pad": 0.5}}
    axes.annotate("\n".join(notes), (position, bottom), (0, 3), **place)


def _varying_fields(answers: Sequence[Answer]) -> list[str]:
    """The fields in which the answers' runs differ."""
    runs = [answer.run.to_dict() for answer in answers]
    return [field for field in runs[0] if any(run[field] != runs[0][field] for run in runs)]


def _settings(answer: Answer, fields: Sequence[str]) -> list[str]:
    """What sets this answer's run apart from the others: "seq_len 4096"."""
    model = f"{answer.run.model.parameters / 1e9:.3g}B parameters"
    return [model if field == "model" else f"{field} {getattr(answer.run, field)}" for field in fields]


def _source(answer: Answer) -> str:
    return (
        f"{METHOD_LABELS[answer.method]}{' on' if answer.method == 'recall' else ','} {answer.device or 'any device'}"
    )


def _row(answer: Answer, fields: Sequence[str]) -> list[str]:
    """The cells under "run" (where there are fields that set runs apart) and `COLUMNS`."""
    run = [", ".join(_settings(answer, fields))] if fields else []
    outcome = ": ".join(filter(None, [answer.outcome, answer.provenance.get("reason")]))
    peak = "" if answer.peak_bytes is None else worded_bytes(answer.peak_bytes)
    return [*run, METHOD_LABELS[answer.method], answer.device or "any", outcome, peak, answer.phase or ""]


def _worded_parts(stack: Mapping[str, int]) -> str:
    """Such as "60.0 GiB (parameters 15.0 GiB, gradients 15.0 GiB)", without parts of less than a thousandth."""
    total = sum(stack.values())
    named = [f"{part.replace('_', ' ')} {worded_bytes(size)}" for part, size in stack.items() if size * 1000 > total]
    return f"{worded_bytes(total)} ({', '.join(named)})" if stack else "no bytes known"


def _end(curve: Curve, which) -> str:
    x, y = which(curve.points.items())
    return f"{worded(float(y))} at {worded(x)}"
