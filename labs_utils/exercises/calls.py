"""`calls_of`: the `call` of each exercise of a lab in a process that keeps nothing of its oracles."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from functools import partial
from types import CodeType, FunctionType, ModuleType
from typing import Any

from labs_utils.exercises.contract import exercises_of


def calls_of(lab: str, package: str) -> dict[str, Callable]:
    """{exercise id: `call`} of a lab. What no `call` uses of its modules is taken out of this process, oracles with it.

    Only for a process in which student code will run: the lab can't be graded here any more.
    """
    calls = {exercise.id: exercise.call for exercise in exercises_of(lab, package)}
    used = used_by(calls.values(), f"{package}.")
    for module in _modules(package):
        for name in [name for name in vars(module) if not name.startswith("__")]:
            if (id(vars(module)), name) not in used:
                delattr(module, name)
    gc.collect()
    return calls


def _modules(package: str) -> list[ModuleType]:
    """The modules of labs that have been imported, and those beside them that are oracles."""
    prefixes = (f"{package}.lab", f"{package}.saved_bytes")
    return [module for name, module in sys.modules.items() if name.startswith(prefixes)]


def used_by(calls, prefix: str) -> set[tuple[int, str]]:
    """The globals that functions use, through others too, as (id of a module's dict, name); only those of `prefix`."""
    used: set[tuple[int, str]] = set()
    waiting, seen = list(calls), set()
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        waiting += _parts(value)
        if isinstance(value, FunctionType) and value.__module__.startswith(prefix):
            names = [name for name in _names(value.__code__) if name in value.__globals__]
            used.update((id(value.__globals__), name) for name in names)
            waiting += [value.__globals__[name] for name in names]
    return used


def _parts(value: Any) -> list:
    """What a function or a class is made of besides globals: closures, defaults, methods, what it is partial of."""
    if isinstance(value, FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        return [*cells, *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
    if hasattr(value, "__wrapped__"):
        return [value.__wrapped__]
    if isinstance(value, partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, type):
        return [getattr(each, "__func__", getattr(each, "fget", each)) for each in vars(value).values()]
    if isinstance(value, (dict, list, tuple)):
        return list(value.values() if isinstance(value, dict) else value)
    return []


def _names(code: CodeType) -> Iterator[str]:
    """Every name that a code uses, in its inner functions too; attributes are among them, which does no harm."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
