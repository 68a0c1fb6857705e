"""`close`: the comparison that exercises share, strict about types and shapes before it looks at values."""

from __future__ import annotations

import math
from typing import Any

import numpy as np


def close(case: Any, answer: Any, truth: Any, *, rel: float = 0.0, abs: float = 0.0) -> tuple[float, str]:
    """Score an answer against the truth: a score in [0, 1] and a sentence. Fits `Exercise.compare` as it is.

    A dict scores the share of its values that are right; everything else is right or wrong as a whole. Numbers pass
    within `rel` or `abs`, and an int may stand for a float. Arrays and tensors must have the truth's dtype and shape,
    and pass where every value is within `abs + rel * |truth|`. NaN is never close.
    """
    if type(truth) is not dict or type(answer) is not dict or answer.keys() != truth.keys():
        fault = _fault(answer, truth, rel, abs)
        return (0.0, fault) if fault else (1.0, "as expected")
    faults = {key: _fault(answer[key], truth[key], rel, abs) for key in truth}
    wrong = [f"{key}: {fault}" for key, fault in faults.items() if fault]
    return 1 - len(wrong) / max(1, len(truth)), wrong[0] if wrong else "as expected"


def _fault(answer: Any, truth: Any, rel: float, abs: float) -> str | None:
    """What is wrong with an answer, in a few words; None where nothing is."""
    if type(truth) in (int, float) and type(answer) in (int, float):
        return None if math.isclose(answer, truth, rel_tol=rel, abs_tol=abs) else _expected(truth, answer)
    if type(answer) is not type(truth):
        return f"expected {_kind(truth)}, got {_kind(answer)}"
    if hasattr(truth, "shape"):
        return _array_fault(answer, truth, rel, abs)
    if type(truth) is dict:
        if answer.keys() != truth.keys():
            return f"expected the keys {', '.join(truth)}, got {', '.join(answer) or 'none'}"[:300]
        return _first_fault(truth, answer, rel, abs)
    if type(truth) is list:
        if len(answer) != len(truth):
            return f"expected {len(truth)} items, got {len(answer)}"
        return _first_fault(dict(enumerate(truth)), answer, rel, abs)
    return None if answer == truth else _expected(truth, answer)


def _first_fault(truths: dict, answers: Any, rel: float, abs: float) -> str | None:
    for key, truth in truths.items():
        if fault := _fault(answers[key], truth, rel, abs):
            return f"at {key!r} {fault}"
    return None


def _array_fault(answer: Any, truth: Any, rel: float, abs: float) -> str | None:
    if answer.dtype != truth.dtype:
        return f"expected dtype {truth.dtype}, got {answer.dtype}"
    if answer.shape != truth.shape:
        return f"expected shape {tuple(truth.shape)}, got {tuple(answer.shape)}"
    got, expected = _float64(answer), _float64(truth)
    differ = ~np.isclose(got, expected, rtol=rel, atol=abs)
    if not differ.any():
        return None
    index = tuple(int(i) for i in np.argwhere(differ)[0])
    return f"{differ.sum()} of {differ.size} values differ; at {list(index)} {_expected(expected[index], got[index])}"


def _float64(array: Any) -> np.ndarray:
    return array.astype(np.float64) if isinstance(array, np.ndarray) else array.double().numpy()


def _expected(truth: Any, answer: Any) -> str:
    return f"expected {_number(truth)}, got {_number(answer)}"


def _number(value: Any) -> str:
    if type(value) is int:
        return f"{value:,}"
    return f"{value:.6g}" if isinstance(value, float) else repr(value)[:100]


def _kind(value: Any) -> str:
    name = f"{type(value).__module__}.{type(value).__name__}".replace("builtins.", "")
    return "None" if value is None else f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
