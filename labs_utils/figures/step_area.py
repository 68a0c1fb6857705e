"""A step's live bytes as an area: `draw_step`, with its parts, its phases and its peak."""

from __future__ import annotations

from collections.abc import Sequence

from labs_utils.answer import PARTS
from labs_utils.figures.style import part_style
from labs_utils.timeline import Moment
from labs_utils.units import worded_bytes

STEP_LABEL = "allocations and frees, in order"
MOST_MOMENTS = 120  # a peak of few events still gets a width that the eye can see


def draw_step(axes, step: Sequence[Moment], size: int, top_bytes: int, low: bool = False) -> dict[str, float]:
    """Draw a step's live bytes by part in units of `size`, with room above `top_bytes` for its phases and its peak.

    In `low` axes the peak's bytes stand beside it, not above. Returns the greatest height of each part that is there.
    """
    peak, moments = max(step, key=lambda moment: moment.live_bytes), thinned(step)
    shown = [part for part in PARTS if any(moment.parts[part] for _, moment in moments)]
    series = [[moment.parts[part] / size for _, moment in moments] for part in shown]
    for part, area in zip(shown, axes.stackplot([x for x, _ in moments], series, step="post"), strict=True):
        area.set(**part_style(part, "measure") | {"linewidth": 0})
    axes.set(xlim=(0, len(step)), ylim=(0, 1.4 * top_bytes / size))
    _mark_phases(axes, [moment.event.phase for moment in step])
    _mark_peak(axes, step.index(peak) / len(step), peak, size, (8, -1) if low else (0, 7))
    return dict(zip(shown, map(max, series), strict=True))


def thinned(moments: Sequence[Moment], most: int = MOST_MOMENTS) -> list[tuple[int, Moment]]:
    """At most `most` moments: of each bin of equal length its start and its highest moment, so that the peak stays."""
    size = -(-len(moments) // most)
    starts = range(0, len(moments), size)
    return [(start, max(moments[start : start + size], key=lambda moment: moment.live_bytes)) for start in starts]


def _mark_phases(axes, phase_of: Sequence[str]) -> None:
    """A line where each phase begins, and its name, on three levels in turn; the last name ends at the right edge."""
    phases = list(dict.fromkeys(phase_of))
    for number, phase in enumerate(phases):
        start, last = phase_of.index(phase), phase == phases[-1]
        axes.axvline(start, ymax=0.82, color="black", linewidth=0.8, linestyle=":", zorder=0)
        place = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points", "va": "top", "fontsize": 9}
        end = {"xy": (len(phase_of), 0.99), "ha": "right"} if last else {"xy": (start, 0.99 - 0.06 * (number % 3))}
        axes.annotate(phase, **end, xytext=(0 if last else 2, 0), **place)


def _mark_peak(axes, across: float, peak: Moment, size: int, offset: tuple[int, int]) -> None:
    """A triangle and the bytes at the peak, `across` the figure (0 to 1), with an offset away from the nearer edge."""
    x, y = across * axes.get_xlim()[1], peak.live_bytes / size
    axes.plot(x, y, "v", color="black")
    late = across > 0.5
    place = {"textcoords": "offset points", "ha": "right" if late else "left", "weight": "bold"}
    axes.annotate(
        f"peak {worded_bytes(peak.live_bytes)}", (x, y), (-offset[0] if late else offset[0], offset[1]), **place
    )
