"""Attempts: a student's function is called on cases, what it raises is an outcome, and `check` prints what came out."""

from __future__ import annotations

import functools
import inspect
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np

from labs_utils.exercises.contract import PACKAGE, Attempt, Exercise, Paper, Result, find
from labs_utils.exercises.forbidden import forbidden_uses
from labs_utils.exercises.marking import result_of
from labs_utils.exercises.plain import NotPlain, plain
from labs_utils.figures.display import is_first

PUBLIC_SEED = 2026
CHECK_SECONDS, AGAIN_SECONDS = 60.0, 1.0  # a check may take; and until it is interrupted again
MOST_CHARACTERS = 600  # of a message


def check(exercise_id: str, fn: Callable, package: str = PACKAGE) -> None:
    """Try `fn` on a few public cases and print what came out; in the notebook nothing a student does raises.

    Only the first stub is told what that means.

    Raises:
        ValueError: an unknown id.
        AssertionError: less than full marks, where `LABS_STRICT=1` is in the environment.
    """
    exercise = find(exercise_id, package)
    with time_limit(CHECK_SECONDS):
        result = grade(exercise, fn, np.random.default_rng(PUBLIC_SEED))
    report = report_of(exercise, result)
    if os.environ.get("LABS_STRICT") == "1" and result.score < 1:
        raise AssertionError(report)
    if result.outcome == "not attempted" and not is_first("a stub is fine", exercise_id):
        report = f"{exercise_id}: still a stub."
    print(report)


def report_of(exercise: Exercise, result: Result) -> str:
    """The lines a student reads: outcome, first failing case, the hint that belongs to what went wrong, flags."""
    lines = [f"{exercise.id}: {result.outcome}. {shown(result.message)}"]
    if result.case is not None:
        lines.append(f"  the case: {_brief(_named_situation(result.case, result.message))}")
    if result.cause in exercise.hints:
        lines.append(f"  hint: {exercise.hints[result.cause]}")
    if exercise.why and result.score == 1:
        lines.append(f"  why it works: {exercise.why}")
    return "\n".join(lines + [f"  note: {flag}" for flag in result.flags])


def shown(text: str) -> str:
    """A text with control characters escaped, cut where it is long.

    >>> shown("one\\ntwo")
    'one\\\\ntwo'
    """
    escaped = "".join(each if each.isprintable() else repr(each)[1:-1] for each in text[:MOST_CHARACTERS])
    return escaped + "…" * (len(text) > MOST_CHARACTERS)


class StudentTimeout(BaseException):
    """The student's code takes too long; no `except Exception` catches it."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Interrupt student code that takes longer: in the main thread, and where the system has an alarm."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return

    def interrupt(*_):
        raise StudentTimeout

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _named_situation(case: Any, message: str) -> Any:
    """The situation of a case that the message names, as in "Case 1 of 4: short sequence: …"; else the whole case."""
    names = [name for name in case if f": {name}: " in message] if isinstance(case, dict) else []
    return {name: case[name] for name in names[:1]} or case


def _brief(case: Any) -> str:
    """A case in at most about 200 characters, arrays by shape."""
    if isinstance(case, dict):
        return ", ".join(f"{key} = {_brief(value)}" for key, value in case.items())[:200]
    if hasattr(case, "shape"):
        return f"array of shape {tuple(case.shape)}, {case.dtype}"
    return repr(case)[:200]


def grade(exercise: Exercise, fn: Callable, rng: np.random.Generator, cases: int | None = None) -> Result:
    """Grade `fn` in this process on `cases` cases drawn with `rng`, by default the exercise's.

    There is no cap but on tensors, where the exercise is about memory.
    """
    drawn = draw_cases(exercise, rng, cases or exercise.cases)
    with _bounded(exercise):
        attempts = [attempt(exercise.call, fn, plain(case)) for case in drawn]
    answered = [tried.outcome == "answered" for tried in attempts]
    truths = [truth_of(exercise, case) if there else None for case, there in zip(drawn, answered, strict=True)]
    return result_of(Paper(exercise, drawn, truths), attempts, forbidden_uses(exercise, _source(fn)))


def _bounded(exercise: Exercise) -> AbstractContextManager:
    """A bound on all tensors where the exercise is about memory, else nothing."""
    if "memory" not in exercise.hints:
        return nullcontext()
    from labs_utils.exercises.bounded import BoundedTracker  # needs torch, which importing the exercises doesn't load

    return BoundedTracker()


def paper_of(exercise: Exercise, rng: np.random.Generator, cases: int) -> Paper:
    """`cases` cases drawn with `rng`, and their truths."""
    drawn = draw_cases(exercise, rng, cases)
    return Paper(exercise, drawn, [truth_of(exercise, case) for case in drawn])


def draw_cases(exercise: Exercise, rng: np.random.Generator, cases: int) -> list:
    """`cases` cases as the student's code will see them. Raises `NotPlain` where `draw` makes more than plain data."""
    return [plain(exercise.draw(rng)) for _ in range(cases)]


def truth_of(exercise: Exercise, case: Any) -> Any:
    """The truth of a case as plain data; the case stays as it is."""
    return plain(exercise.truth(plain(case)))


def attempt(call: Callable, fn: Callable, case: Any) -> Attempt:
    """Call a student's function beside `call`; whatever it raises is an outcome, except `KeyboardInterrupt`."""
    gave_nothing = []

    @functools.wraps(fn)
    def watched(*args, **kwargs):
        answer = fn(*args, **kwargs)
        gave_nothing.append(answer is None)
        return answer

    try:
        return Attempt("answered", plain(call(watched if callable(fn) else fn, case)))
    except KeyboardInterrupt:
        raise
    except StudentTimeout:
        return Attempt("timeout", message=f"no answer within {CHECK_SECONDS:g} seconds: does a loop never end?")
    except NotPlain as error:
        return Attempt("wrong", message=f"your function returned something else: {error}.")
    except BaseException as error:  # SystemExit too: it is the student's, not ours
        code = getattr(inspect.unwrap(fn), "__code__", None)
        tried = failure(error, code.co_filename if code else "")
        if gave_nothing[-1:] == [True] and "of your code" not in tried.message:  # it had returned when this was raised
            return replace(tried, message=f"your function returned None: is a `return` missing? ({tried.message})")
        return tried


def failure(error: BaseException, filename: str) -> Attempt:
    """An exception in student code as an attempt; the line is the last one in `filename`, the student's own.

    >>> failure(ZeroDivisionError("division by zero"), "answer.py").message
    'ZeroDivisionError: division by zero'
    """
    if isinstance(error, NotImplementedError) and not error.args:  # torch raises it too, with a reason
        return Attempt("not attempted", message="The function is still a stub.")
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == filename]
    where = f", at line {frames[-1].lineno} of your code: {frames[-1].line}" if frames else ""
    words = _words_of(error)
    if isinstance(error, MemoryError) or "allocate memory" in words or "out of memory" in words:
        return Attempt("memory", message=f"your code asked for more memory than it may have{where}")
    reason = words.partition("\n")[0][:300]
    return Attempt("crash", message=f"{type(error).__name__}: {reason}{where}")


def _words_of(error: BaseException) -> str:
    """What an exception says; it may be the student's own class, and fail at that."""
    try:
        return str(error)
    except BaseException:
        return "an error that can't be shown"


def _source(fn: Callable) -> str:
    try:
        return inspect.getsource(fn)
    except (OSError, TypeError):
        return ""
