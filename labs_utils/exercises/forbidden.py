"""Names that an exercise asks to do without: where a source uses one, found without running it."""

from __future__ import annotations

import ast
import textwrap

from labs_utils.exercises.contract import Exercise

# What no exercise needs, and a way round the judge would.
WATCHED = ("sys._getframe", "gc", "sys.modules", "importlib", "open", "mmap", "ctypes")
MOST_CHARACTERS = 200_000


def forbidden_uses(exercise: Exercise, source: str) -> tuple[str, ...]:
    """A flag for each name that `source` imports, uses, or spells as a string, of those forbidden and of `WATCHED`.

    >>> from types import SimpleNamespace
    >>> forbidden_uses(SimpleNamespace(forbidden=("numpy.mean", "torch")), "from numpy import mean as average")
    ('uses numpy.mean',)
    """
    if len(source) > MOST_CHARACTERS:
        return (f"is {len(source):,} characters long, and wasn't read",)
    used = [f".{name}." for name in _dotted_names(source)]
    names = dict.fromkeys([*exercise.forbidden, *WATCHED])
    return tuple(f"uses {name}" for name in names if any(f".{name}." in other for other in used))


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
