"""Marking: an answer is compared with the truth, marks are averaged, and all cases make a result."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from labs_utils.exercises.contract import Attempt, Exercise, Mark, Paper, Result
from labs_utils.exercises.plain import as_numbers

AS_EXPECTED = Mark(1.0, "as expected")
STOPPED = ("crash", "timeout", "memory", "processes")


def close(case: Any, answer: Any, truth: Any, *, rel: float = 0.0, abs: float = 0.0) -> Mark:
    """Compare an answer with the truth. Fits `Exercise.compare` as it is.

    A dict scores the share of its values that are right; everything else is right or wrong as a whole. Numbers pass
    within `rel` or `abs`, and an int may stand for a float. Arrays and tensors must have the truth's dtype and shape,
    and pass where every value is within `abs + rel * |truth|`. NaN is never close.

    >>> close(None, {"low": 1, "high": 3}, {"low": 1, "high": 2})
    Mark(score=0.5, sentence='high: expected 2, got 3', cause=None)
    """
    if type(truth) is not dict or type(answer) is not dict or answer.keys() != truth.keys():
        fault = _fault(answer, truth, rel, abs)
        return Mark(0.0, fault) if fault else AS_EXPECTED
    faults = {key: _fault(answer[key], truth[key], rel, abs) for key in truth}
    wrong = [f"{key}: {fault}" for key, fault in faults.items() if fault]
    return Mark(1 - len(wrong) / max(1, len(truth)), wrong[0] if wrong else AS_EXPECTED.sentence)


def _fault(answer: Any, truth: Any, rel: float, abs: float) -> str | None:
    """What is wrong with an answer, in a few words; None where nothing is."""
    if type(truth) in (int, float) and type(answer) in (int, float):
        return None if math.isclose(answer, truth, rel_tol=rel, abs_tol=abs) else _expected(truth, answer)
    if type(answer) is not type(truth):
        return f"expected {_type_name(truth)}, got {_type_name(answer)}"
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
    expected, got = _number(truth), _number(answer)
    if expected == got:  # they differ further on
        expected, got = repr(truth)[:100], repr(answer)[:100]
    return f"expected {expected}, got {got}"


def _number(value: Any) -> str:
    if type(value) is int:
        return f"{value:,}"
    return f"{value:.6g}" if isinstance(value, float) else repr(value)[:100]


def _type_name(value: Any) -> str:
    name = f"{type(value).__module__}.{type(value).__name__}".replace("builtins.", "")
    return "None" if value is None else f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def compare_bytes(
    case: Any, answer: Any, truth: int, *, rel: float = 0.0, too_few: str = "", too_many: str = ""
) -> Mark:
    """`close` for a number of bytes; a wrong one is told by which factor, and what is likely forgotten or added.

    Its cause is "units", "too few" or "too many".

    >>> compare_bytes(None, 50, 100, too_few="is a copy left out?").sentence
    'expected 100, got 50 bytes, 0.5 times as many: is a copy left out?'
    """
    mark = close(case, answer, truth, rel=rel)
    if mark.score == 1 or type(answer) not in (int, float):
        return mark
    if 0 < answer * 2**20 < truth:
        return mark._replace(sentence=f"{mark.sentence}: this looks like MB or GB; bytes are asked", cause="units")
    factor = f", {answer / truth:.3g} times as many" if truth else ""
    likely, cause = (too_few, "too few") if answer < truth else (too_many, "too many")
    return mark._replace(sentence=f"{mark.sentence} bytes{factor}: {likely}", cause=cause)


def with_cause(mark: Mark, answer: Any, mistakes: Mapping[str, Any], **tolerances: float) -> Mark:
    """A mark that isn't full, with the cause that leads to the answer: `mistakes` has what each would give.

    >>> with_cause(Mark(0.0, "expected 12, got 3"), 3, {"not squared": 3, "not averaged": 24}).cause
    'not squared'
    """
    if mark.score == 1:
        return mark
    made = (cause for cause, value in mistakes.items() if close(None, answer, value, **tolerances).score == 1)
    return mark._replace(cause=next(made, mark.cause))


def mean_mark(marks: dict[str, Mark]) -> Mark:
    """The mean score, with the sentence and the cause of the first mark that isn't full.

    >>> mean_mark({"short": AS_EXPECTED, "long": Mark(0.0, "too slow")})
    Mark(score=0.5, sentence='long: too slow', cause=None)
    """
    score = sum(mark.score for mark in marks.values()) / len(marks)
    for name, mark in marks.items():
        if mark.score < 1:
            return Mark(score, f"{name}: {mark.sentence}", mark.cause)
    return Mark(score, AS_EXPECTED.sentence)


def exercise_of_situations(
    *, call: Callable, truth: Callable, compare: Callable, situations: Callable[[Any], dict] | None = None, **fields
) -> Exercise:
    """An exercise that asks for one answer in each of several named situations, and gives the mean of their marks.

    `call`, `truth` and `compare` are those of a single situation, and `fields` those of `Exercise`. `situations(case)`
    makes {name: situation}; left out, a case is such a dict already.
    """
    named = situations or (lambda case: case)

    def compare_all(case: Any, answers: dict, truths: dict) -> Mark:
        every = named(case).items()
        return mean_mark({name: compare(situation, answers[name], truths[name]) for name, situation in every})

    return Exercise(
        call=lambda fn, case: {name: call(fn, situation) for name, situation in named(case).items()},
        truth=lambda case: {name: truth(situation) for name, situation in named(case).items()},
        compare=compare_all,
        **fields,
    )


def result_of(paper: Paper, attempts: list[Attempt], flags: tuple[str, ...] = ()) -> Result:
    """The result over all cases: the mean score, and the outcome and message of the first case that tells most."""
    compare, cases = paper.exercise.compare, paper.cases
    results = [_result_of_case(compare, *each) for each in zip(cases, attempts, paper.truths, strict=True)]
    score = sum(one.score for one in results) / len(results)
    if score == 1:
        told = f"All {len(results)} cases are right." if len(results) > 1 else "The case is right."
        return Result(1.0, "passed", told, flags)
    stopped = [i for i, one in enumerate(results) if one.outcome in STOPPED]
    failed = [i for i, one in enumerate(results) if one.score < 1]
    first = (stopped or failed)[0]
    outcome = "partly" if score > 0 and not stopped else results[first].outcome
    if outcome == "not attempted":
        return Result(0.0, outcome, results[first].message, flags)
    message = f"Case {first + 1} of {len(results)}: {results[first].message}"
    return Result(score, outcome, message, flags, cases[first], results[first].cause)


def _result_of_case(compare: Callable, case: Any, tried: Attempt, truth: Any) -> Result:
    """The result of one case. A comparison that an answer breaks, or a score outside [0, 1], is 0."""
    if tried.outcome != "answered":
        return Result(0.0, tried.outcome, tried.message, cause=tried.outcome)
    try:
        mark = compare(case, as_numbers(tried.answer, truth), truth)
        score = float(mark.score) if 0 <= mark.score <= 1 else 0.0
    except Exception as error:
        score, mark = 0.0, Mark(0.0, f"the answer can't be compared ({type(error).__name__}: {error})")
    outcome = "passed" if score == 1 else "partly" if score else "wrong"
    return Result(score, outcome, mark.sentence, cause=mark.cause)
