"""Mutants of a source: one small fault in each; and which of them the tests let through.

python tests/mutants.py labs_utils/memory_model labs_utils/allocator.py --draw 200 --seed 1 [--slow | --tests PATH]

Each mutant is tried in a process of its own that loads its module from the mutated source: no file changes. The tests
most likely to see it come first, and the first that fails ends the trial. Docstrings, annotations and texts stay.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import importlib.abc
import importlib.util
import os
import random
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
LIMIT_SECONDS = 400
TESTS = (
    "tests/answers/test_pinned_answers.py", "tests/test_allocator.py", "tests/memory_model", "tests/time_model",
    "tests/test_timeline.py", "tests/training/test_deepspeed_config.py", "tests/answers", "tests/test_recordings.py",
    "tests/workers/test_offload.py",
)  # fmt: skip
TURNED = {
    ast.Lt: (ast.LtE, ast.GtE), ast.LtE: (ast.Lt, ast.Gt), ast.Gt: (ast.GtE, ast.LtE), ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,), ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}  # fmt: skip
EXCHANGED = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult}
CALLED = {"min": "max", "max": "min", "any": "all", "all": "any"}


class Mutant(NamedTuple):
    """A source with one fault; `change` says which, at which line."""

    line: int
    change: str
    source: str


def mutants(source: str) -> Iterator[Mutant]:
    """Every mutant of a source that this walk knows: comparisons, constants, terms, branches, statements, calls."""
    tree = ast.parse(source)
    left_alone = {id(part) for node in ast.walk(tree) for part in texts_and_types(node)}
    for parent in ast.walk(tree):
        for name, value in ast.iter_fields(parent):
            places = enumerate(value) if isinstance(value, list) else [(None, value)]
            for place, node in places:
                if isinstance(node, ast.AST) and id(node) not in left_alone:
                    for other in replacements(node):
                        yield Mutant(getattr(node, "lineno", 0), *changed(tree, parent, name, place, node, other))


def texts_and_types(node: ast.AST) -> Iterator[ast.AST]:
    """What isn't mutated below a node: annotations, docstrings and the pieces of formatted texts."""
    for name in ("annotation", "returns"):
        if getattr(node, name, None):
            yield from ast.walk(getattr(node, name))
    if isinstance(node, ast.JoinedStr):
        yield from ast.walk(node)
    if isinstance(node, ast.Expr) and isinstance(node.value, (ast.Constant, ast.Yield, ast.YieldFrom)):
        yield from ast.walk(node)


def replacements(node: ast.AST) -> Iterator[ast.AST]:
    """What may stand in a node's place."""
    if isinstance(node, ast.Compare):
        yield from turned(node)
    elif isinstance(node, ast.Constant):
        yield from map(ast.Constant, other_values(node.value))
    elif isinstance(node, ast.BinOp) and type(node.op) in EXCHANGED:
        yield from (node.left, node.right, ast.BinOp(node.left, EXCHANGED[type(node.op)](), node.right))
    elif isinstance(node, ast.BoolOp):
        yield from node.values
    elif isinstance(node, ast.UnaryOp):
        yield node.operand
    elif isinstance(node, ast.IfExp):
        yield from (node.body, node.orelse)
    elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in CALLED:
        yield ast.Call(ast.Name(CALLED[node.func.id]), node.args, node.keywords)
    elif isinstance(node, (ast.If, ast.While)):
        yield from (with_test(node, value) for value in ((True, False) if isinstance(node, ast.If) else (False,)))
    elif isinstance(node, (ast.AugAssign, ast.Delete)) or (isinstance(node, ast.Expr) and called(node)):
        yield ast.Pass()


def called(node: ast.Expr) -> bool:
    return isinstance(node.value, ast.Call)


def turned(node: ast.Compare) -> Iterator[ast.Compare]:
    for number, operator in enumerate(node.ops):
        for other in TURNED[type(operator)]:
            yield ast.Compare(node.left, [*node.ops[:number], other(), *node.ops[number + 1 :]], node.comparators)


def other_values(value) -> tuple:
    """Values near a constant; none for texts."""
    if isinstance(value, bool):
        return (not value,)
    if isinstance(value, int):
        return (value + 1, value - 1)
    return (1.1 * value + 0.1,) if isinstance(value, float) else ()


def with_test(node: ast.If | ast.While, value: bool) -> ast.AST:
    return type(node)(ast.Constant(value), node.body, node.orelse)


def changed(tree, parent, name: str, place: int | None, node: ast.AST, other: ast.AST) -> tuple[str, str]:
    """The change in words, and the whole source with it; the tree is as before afterwards."""
    value = getattr(parent, name)
    if place is None:
        setattr(parent, name, other)
    else:
        value[place] = other
    source = ast.unparse(ast.fix_missing_locations(copy.copy(tree)))
    if place is None:
        setattr(parent, name, node)
    else:
        value[place] = node
    before, after = (ast.unparse(ast.fix_missing_locations(copy.deepcopy(each))) for each in (node, other))
    return f"{before.splitlines()[0][:70]} → {after.splitlines()[0][:70]}", source


class OneModule(importlib.abc.MetaPathFinder, importlib.abc.SourceLoader):
    """Loads one module from a given source, and leaves all others to Python."""

    def __init__(self, module: str, path: Path, source: str):
        self.module, self.path, self.source = module, path, source

    def find_spec(self, fullname, path=None, target=None):
        if fullname != self.module:
            return None
        return importlib.util.spec_from_file_location(fullname, self.path, loader=self)

    def get_filename(self, fullname):
        return str(self.path)

    def get_data(self, path):
        return self.source.encode()


def survives(path: Path, mutant: Mutant, slow: bool, tests: Sequence[str]) -> bool:
    """Whether all tests pass with a mutant, in a process forked from this one; one that hangs doesn't survive."""
    child = os.fork()
    if child == 0:
        os.setsid()
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 1)
            os.dup2(nowhere.fileno(), 2)
        os._exit(exit_status(path, mutant, slow, tests))
    deadline = time.monotonic() + LIMIT_SECONDS * (5 if slow else 1)
    while not (ended := os.waitpid(child, os.WNOHANG))[0] and time.monotonic() < deadline:
        time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if not ended[0]:
        os.waitpid(child, 0)
    return bool(ended[0]) and ended[1] == 0


def exit_status(path: Path, mutant: Mutant, slow: bool, tests: Sequence[str]) -> int:
    """The exit status of the tests with a mutant in its module's place."""
    import pytest

    module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    sys.meta_path.insert(0, OneModule(module, path, mutant.source))
    which = [] if slow else ["-m", "not slow"]
    return int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-o", "addopts=", *which, *tests]))


def sources(places: list[str]) -> list[Path]:
    """The modules at places given as files or folders of the repository."""
    paths = [ROOT / place for place in places]
    return [file for path in paths for file in (sorted(path.rglob("*.py")) if path.is_dir() else [path])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("places", nargs="+")
    parser.add_argument("--draw", type=int, help="how many to try, drawn at random; all, if it isn't given")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--slow", action="store_true", help="with the slow tests too")
    parser.add_argument("--tests", nargs="+", help="only these, a file or a folder each")
    options = parser.parse_args()
    import torch  # noqa: F401  once, for all children
    import transformers.models.llama.modeling_llama  # noqa: F401
    from tqdm import tqdm

    os.chdir(ROOT)
    every = [(path, mutant) for path in sources(options.places) for mutant in mutants(path.read_text("utf-8"))]
    drawn = random.Random(options.seed).sample(every, min(options.draw or len(every), len(every)))
    survivors = []
    for path, mutant in (bar := tqdm(drawn, unit="mutant")):
        if survives(path, mutant, options.slow, options.tests or TESTS):
            survivors.append((path, mutant))
            bar.write(f"{path.relative_to(ROOT)}:{mutant.line}: {mutant.change}")
    print(f"{len(drawn)} of {len(every)} mutants tried, {len(survivors)} survived")


if __name__ == "__main__":
    main()
