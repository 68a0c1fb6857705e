"""From a student's function to a result: attempt every case, compare the answers, and say it in a sentence."""

from __future__ import annotations

import ast
import functools
import inspect
import os
import textwrap
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from labs_utils.exercises.contract import PACKAGE, Exercise, Result, find
from labs_utils.exercises.plain import NotPlain, as_numbers, plain

CASES = 4
PUBLIC_SEED = 2026
STOPPED = ("crash", "timeout", "memory")
_failed_checks: Counter[str] = Counter()


@dataclass(frozen=True)
class Attempt:
    """What came of calling a student's function on one case: "answered", or an outcome of `Result` and why."""

    outcome: str
    answer: Any = None
    message: str = ""


def check(exercise_id: str, fn: Callable, package: str = PACKAGE) -> None:
    """Try `fn` on a few public cases and print what came out; in the notebook nothing a student does raises.

    Raises:
        ValueError: an unknown id.
        AssertionError: less than full marks, where `LABS_STRICT=1` is in the environment.
    """
    exercise = find(exercise_id, package)
    result = grade(exercise, fn, np.random.default_rng(PUBLIC_SEED))
    report = _report(exercise, result)
    if os.environ.get("LABS_STRICT") == "1" and result.score < 1:
        raise AssertionError(report)
    print(report)


def _report(exercise: Exercise, result: Result) -> str:
    """The lines a student reads: outcome, first failing case, a further hint at each failure, flags."""
    lines = [f"{exercise.id}: {result.outcome}. {result.message}"]
    if result.case is not None:
        lines.append(f"  the case: {_brief(_told(result.case, result.message))}")
    if exercise.hints and result.score < 1 and result.outcome != "not attempted":
        lines.append(f"  hint: {exercise.hints[min(_failed_checks[exercise.id], len(exercise.hints) - 1)]}")
        _failed_checks[exercise.id] += 1
    return "\n".join(lines + [f"  note: {flag}" for flag in result.flags])


def _told(case: Any, message: str) -> Any:
    """The part of a case that the message names, as in "Case 1 of 4: short sequence: …"; else the whole case."""
    names = [name for name in case if f": {name}: " in message] if isinstance(case, dict) else []
    return {name: case[name] for name in names[:1]} or case


def _brief(case: Any) -> str:
    """A case in at most about 200 characters, arrays by shape."""
    if isinstance(case, dict):
        return ", ".join(f"{key} = {_brief(value)}" for key, value in case.items())[:200]
    if hasattr(case, "shape"):
        return f"array of shape {tuple(case.shape)}, {case.dtype}"
    return repr(case)[:200]


def grade(exercise: Exercise, fn: Callable, rng: np.random.Generator, cases: int = CASES) -> Result:
    """Grade `fn` in this process on `cases` cases drawn with `rng`; no cap on memory or time."""
    drawn = draw_cases(exercise, rng, cases)
    attempts = [attempt(exercise, fn, plain(case)) for case in drawn]
    return total(exercise, drawn, attempts, forbidden_uses(exercise, _source(fn)))


def draw_cases(exercise: Exercise, rng: np.random.Generator, cases: int) -> list:
    """`cases` cases as the student's code will see them. Raises `NotPlain` where `draw` makes more than plain data."""
    return [plain(exercise.draw(rng)) for _ in range(cases)]


def attempt(exercise: Exercise, fn: Callable, case: Any) -> Attempt:
    """Call a student's function beside `call`; whatever it raises is an outcome, except `KeyboardInterrupt`."""
    gave_nothing = []

    @functools.wraps(fn)
    def watched(*args, **kwargs):
        answer = fn(*args, **kwargs)
        gave_nothing.append(answer is None)
        return answer

    try:
        return Attempt("answered", plain(exercise.call(watched if callable(fn) else fn, case)))
    except KeyboardInterrupt:
        raise
    except NotPlain as error:
        return Attempt("wrong", message=f"your function returned something else: {error}.")
    except BaseException as error:  # SystemExit too: it is the student's, not ours
        code = getattr(inspect.unwrap(fn), "__code__", None)
        tried = failure(error, code.co_filename if code else "")
        if gave_nothing[-1:] == [True] and "of your code" not in tried.message:  # it had returned when this was raised
            return replace(tried, message=f"your function returned None: is a `return` missing? ({tried.message})")
        return tried


def failure(error: BaseException, filename: str) -> Attempt:
    """An exception in student code as an attempt; the line is the last one in `filename`, the student's own."""
    if isinstance(error, NotImplementedError) and not error.args:  # torch raises it too, with a reason
        return Attempt("not attempted", message="The function is still a stub.")
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == filename]
    where = f", at line {frames[-1].lineno} of your code: {frames[-1].line}" if frames else ""
    if isinstance(error, MemoryError) or "allocate memory" in str(error) or "out of memory" in str(error):
        return Attempt("memory", message=f"your code asked for more memory than it may have{where}")
    reason = str(error).partition("\n")[0][:300]
    return Attempt("crash", message=f"{type(error).__name__}: {reason}{where}")


def total(exercise: Exercise, cases: list, attempts: list[Attempt], flags: tuple[str, ...] = ()) -> Result:
    """The result over all cases: the mean score, and the outcome and message of the first case that tells most."""
    marks = [_mark(exercise, case, tried) for case, tried in zip(cases, attempts, strict=True)]
    score = sum(mark.score for mark in marks) / len(marks)
    if score == 1:
        return Result(1.0, "passed", f"All {len(marks)} cases are right.", flags)
    stopped = [i for i, mark in enumerate(marks) if mark.outcome in STOPPED]
    failed = [i for i, mark in enumerate(marks) if mark.score < 1]
    first = (stopped or failed)[0]
    outcome = "partly" if score > 0 and not stopped else marks[first].outcome
    if outcome == "not attempted":
        return Result(0.0, outcome, marks[first].message, flags)
    return Result(score, outcome, f"Case {first + 1} of {len(marks)}: {marks[first].message}", flags, cases[first])


def _mark(exercise: Exercise, case: Any, tried: Attempt) -> Result:
    """The result of one case. A comparison that an answer breaks, or a score outside [0, 1], is 0."""
    if tried.outcome != "answered":
        return Result(0.0, tried.outcome, tried.message)
    truth = plain(exercise.truth(case))
    try:
        score, sentence = exercise.compare(case, as_numbers(tried.answer, truth), truth)
        score = float(score) if 0 <= score <= 1 else 0.0
    except Exception as error:
        score, sentence = 0.0, f"the answer can't be compared ({type(error).__name__}: {error})"
    return Result(score, "passed" if score == 1 else "partly" if score else "wrong", sentence)


def _source(fn: Callable) -> str:
    try:
        return inspect.getsource(fn)
    except (OSError, TypeError):
        return ""


def forbidden_uses(exercise: Exercise, source: str) -> tuple[str, ...]:
    """A flag for each forbidden name that `source` imports, uses, or spells as a string."""
    used = [f".{name}." for name in _dotted_names(source)]
    return tuple(f"uses {name}" for name in exercise.forbidden if any(f".{name}." in other for other in used))


def _dotted_names(source: str) -> list[str]:
    """Every name of a source: `a.b.c` as one, imports with their module, and strings (for `getattr`)."""
    try:
        nodes = list(ast.walk(ast.parse(textwrap.dedent(source))))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    strings = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    names = [string for string in strings if string.replace(".", "").isidentifier()]  # not a docstring
    for node in nodes:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            home = f"{node.module}." if isinstance(node, ast.ImportFrom) and node.module else ""
            names += [home + alias.name for alias in node.names]
        elif isinstance(node, (ast.Attribute, ast.Name)):
            names.append(_dotted(node))
    return names


def _dotted(node: ast.AST) -> str:
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join(reversed([*parts, node.id] if isinstance(node, ast.Name) else parts))
