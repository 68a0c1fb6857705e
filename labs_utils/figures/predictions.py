"""`predict` and `reveal`: a guess before the measurement, and the two side by side after it. Never scored."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from html import escape
from numbers import Real
from typing import Any

from labs_utils.figures.display import is_first, show, show_line
from labs_utils.figures.style import METHOD_LABELS, wrapped
from labs_utils.pages.marks import ANSWER, QUESTION
from labs_utils.units import GIB, KIB, MIB, worded

# Each unit's kind, and how many of the kind's base unit it is.
UNITS = {
    "": ("numbers", 1),
    "tokens": ("tokens", 1),
    **{unit: ("bytes", size) for unit, size in {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}.items()},
    **{unit: ("bytes", size) for unit, size in {"KiB": KIB, "MiB": MIB, "GiB": GIB}.items()},
    "s": ("time", 1),
    "ms": ("time", 1e-3),
}
IN_WORDS = {"": "", "B": " (in bytes)", "s": " (in seconds)", "ms": " (in milliseconds)"}
CLOSE_FACTOR = 1.1


@dataclass(frozen=True)
class Prediction:
    """A guess as it is kept in the notebook's output; `value` is None where it was left blank."""

    id: str
    value: float | None
    unit: str
    question: str


_predictions: dict[str, Prediction] = {}


class _Unusable(ValueError):
    """A guess or a value that can't be drawn: one sentence for the student."""


def predict(prediction_id: str, guess: Any, unit: str = "", question: str = "") -> None:
    """Ask a question, and keep a guess in this process and in the notebook's output; `None` or `...` is a blank one.

    `unit` is a key of `UNITS`. A guess that can't be used is answered by one printed sentence.
    """
    try:
        _kind_and_size(unit)
        value = None if guess is None or guess is ... else _number(guess, "a guess")
    except _Unusable as problem:
        print(problem)
        return
    prediction = Prediction(prediction_id, value, unit, question)
    _predictions[prediction_id] = prediction
    asked = (question or f"{_quantity(prediction_id)}?") + IN_WORDS.get(unit, f" (in {unit})")
    said = f"Your guess: {_with_unit(value, unit)}." if value is not None else ""
    if value is None and is_first("a blank guess is fine", prediction_id):
        said = "No guess yet, which is fine."
    _show_both(asked, said, QUESTION, asdict(prediction))


def reveal(prediction_id: str, answer: Any, unit: str | None = None, method: str = "measure") -> None:
    """Say the answer; where there is a guess, draw it beside the answer, and say how far off it was.

    `answer` is a number in `unit` (default: the guess's) that `method` (a key of `METHOD_LABELS`) found, or a
    `labs_utils.answer.Answer`, whose peak and method are shown. What can't be shown is answered by one printed
    sentence.
    """
    prediction = _predictions.get(prediction_id)
    try:
        value, own_unit, label = _answered(answer, unit, prediction, method)
        shown_unit = prediction.unit if prediction else own_unit
        value = _convert(value, own_unit, shown_unit)
    except _Unusable as problem:
        print(problem)
        return
    prediction = prediction or Prediction(prediction_id, None, shown_unit, "")
    sentence = _how_far_off(prediction, value, label)
    if prediction.value is not None:
        show(_figure(prediction, value, label), alt=f"Bar chart. {sentence}")
    asked = prediction.question if prediction.value is None else ""  # the figure's title
    _show_both(asked, sentence, ANSWER, {"id": prediction_id, "value": value, "unit": shown_unit, "method": label})


def _answered(answer: Any, unit: str | None, prediction: Prediction | None, method: str) -> tuple[float, str, str]:
    """The value of an answer, its unit, and what the answer is called in a figure."""
    from labs_utils.answer import Answer

    if not isinstance(answer, Answer):
        unit = unit if unit is not None else prediction.unit if prediction else ""
        return _number(answer, "the answer"), unit, METHOD_LABELS[method]
    if answer.peak_bytes is None:
        raise _Unusable(f"There is no peak to show ({answer.outcome}): {answer.provenance.get('reason', 'no reason')}.")
    shown_unit = unit or (prediction.unit if prediction else "GiB")
    return _convert(answer.peak_bytes, "B", shown_unit), shown_unit, METHOD_LABELS[answer.method]


def _number(value: Any, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value) or value < 0:
        raise _Unusable(f"{what.capitalize()} is a number of 0 or more, not {repr(value)[:60]}; try again.")
    return float(value)


def _kind_and_size(unit: str) -> tuple[str, float]:
    if not isinstance(unit, str) or unit not in UNITS:
        raise _Unusable(f"{unit!r} is not a unit known here; use one of {', '.join(filter(None, UNITS))}, or none.")
    return UNITS[unit]


def _convert(value: float, unit: str, to: str) -> float:
    (kind, size), (other_kind, other_size) = _kind_and_size(unit), _kind_and_size(to)
    if kind != other_kind:
        raise _Unusable(f"The answer is in {unit or 'plain numbers'} and the guess in {to or 'plain numbers'}.")
    return value * size / other_size


def _with_unit(value: float, unit: str) -> str:
    """A value with its unit; GB in GiB too, because the lecture speaks GB and tools speak GiB."""
    gib = f" ({value * 1e9 / GIB:.4g} GiB)" if unit == "GB" else ""
    return f"{worded(value)} {unit}".strip() + gib


def _how_far_off(prediction: Prediction, value: float, label: str) -> str:
    """One kind sentence: the answer, and the guess as a factor of it."""
    sentence, guess = f"{label.capitalize()}: {_with_unit(value, prediction.unit)}.", prediction.value
    if guess is None:
        return sentence
    sentence += f" Your guess: {_with_unit(guess, prediction.unit)}"
    if guess == value:
        return f"{sentence}, spot on."
    if not guess or not value:  # no factor leads to or from 0
        return f"{sentence}."
    factor = max(guess / value, value / guess)
    if factor <= CLOSE_FACTOR:
        return f"{sentence}, within {math.ceil((factor - 1) * 100)} %: well judged."
    times = f"{factor:,.0f}" if factor >= 10 else f"{factor:.2g}"
    return f"{sentence}, {times} times too {'large' if guess > value else 'small'}; what makes the difference?"


def _figure(prediction: Prediction, value: float, label: str):
    """Two horizontal bars, the guess hatched and the answer solid."""
    from matplotlib.figure import Figure

    recorded = label == METHOD_LABELS["recall"]  # hollow and dashed, as in every figure
    look = {"color": "white", "edgecolor": "tab:blue", "linestyle": "--"} if recorded else {"color": "tab:blue"}
    guessed = {"color": "white", "edgecolor": "0.3", "hatch": "//"}
    bars = [(label, value, look), ("your guess", prediction.value, guessed)]
    figure = Figure(figsize=(5.2, 2), layout="constrained")
    axes = figure.add_subplot(xlabel=prediction.unit)
    axes.set_title(wrapped(prediction.question or _quantity(prediction.id), 52), loc="left")
    for name, length, style in bars:
        axes.bar_label(axes.barh(name, length, **style), [_with_unit(length, prediction.unit)], padding=4)
    axes.set_xlim(0, 1.5 * max(length for _, length, _ in bars) or 1)  # room for the labels
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def _quantity(prediction_id: str) -> str:
    """The quantity that an id names: "lab01.total_8b" is "total 8b"."""
    return prediction_id.rpartition(".")[2].replace("_", " ")


def _show_both(asked: str, said: str, mime: str, record: dict) -> None:
    """A question and what is said to it, each of which may be empty, as one line."""
    markup = " ".join([f"<strong>{escape(asked)}</strong>"] * bool(asked) + [escape(said)] * bool(said))
    show_line(" ".join(filter(None, (asked, said))), f"<p>{markup}</p>", mime, record)
