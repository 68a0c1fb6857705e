"""Small faults, put into a source one at a time, and whether the tests see them.

    python tests/mutants.py labs_utils/memory_model labs_utils/allocator.py --draw 200 --seed 1

`mutants` lists the faults of a source. The command draws some and, for each, runs quick tests in a copy of the
repository until one fails: pinned answers first, then the tests of the same name, then all others. `--slow` runs what
`make check` leaves out on those that are left.

Left alone are docstrings, annotations, decorators, imports, f-strings and what is raised: what changes there is
wording, speed or nothing. Strings change where something is compared with them or looked up by them.
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TURNED = {
    ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
SHIFTED = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
EXCHANGED = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult,
    ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
DROPPED = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.BitOr, ast.BitAnd)
OTHER_NAME = {"min": "max", "max": "min", "any": "all", "all": "any"}
LOOKED_UP = ("get", "startswith", "endswith", "removeprefix")
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)
GUARDS = {"strict"}  # keywords that change nothing as long as all goes well
NOT_RUN = {"annotation", "returns", "decorator_list", "bases", "type_params"}


def mutants(source: str, kinds: Iterable[str] = ()) -> Iterator[tuple[str, str]]:
    """(what is changed and where, the changed source) for every small fault of some kinds, by default of all."""
    raw = source.encode()
    lines = [0]
    for line in raw.splitlines(keepends=True):
        lines.append(lines[-1] + len(line))
    for node in changeable(ast.parse(source)):
        start = lines[node.lineno - 1] + node.col_offset
        end = lines[node.end_lineno - 1] + node.end_col_offset
        for changed in dict.fromkeys(map(text_of, changes(node, kinds))):
            if changed != text_of(node):
                told = f"line {node.lineno}: {short(raw[start:end].decode())} -> {short(changed)}"
                yield told, (raw[:start] + changed.encode() + raw[end:]).decode()


def text_of(node: ast.AST) -> str:
    return f"({ast.unparse(node)})" if isinstance(node, ast.expr) else ast.unparse(node)


def short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 100 else text[:97] + "..."


def changeable(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes that have changes and places of their own; strings that are compared are marked, and conditions."""
    if isinstance(node, (ast.Import, ast.ImportFrom, ast.JoinedStr)) or is_wording(node):
        return
    if isinstance(node, (ast.expr, ast.stmt)):
        yield node
    if isinstance(node, ast.Raise):
        return
    mark(node)
    for name, value in ast.iter_fields(node):
        if name not in NOT_RUN and not (name == "keywords" and isinstance(node, ast.ClassDef)):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and getattr(child, "arg", "") not in GUARDS:
                    yield from changeable(child)


def is_wording(node: ast.AST) -> bool:
    """A docstring, or a list of names (`__slots__`, `__all__`)."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    targets = node.targets if isinstance(node, ast.Assign) else ()
    return any(isinstance(target, ast.Name) and target.id.startswith("__") for target in targets)


def mark(node: ast.AST) -> None:
    compared = []
    if isinstance(node, ast.Compare):
        compared = [node.left, *node.comparators]
        compared += [each for side in compared for each in getattr(side, "elts", ())]
    elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") in LOOKED_UP:
        compared = node.args
    elif isinstance(node, (ast.If, ast.While)):
        node.test.branches = (True, False) if isinstance(node, ast.If) else (False,)
    for each in compared:
        each.is_compared = True


def changes(node: ast.AST, kinds: Iterable[str]) -> Iterator[ast.AST]:
    """What may stand in a node's place."""
    for types, change in CHANGES:
        if isinstance(node, types) and (not kinds or change.__name__ in kinds):
            yield from change(node)


def with_changed(node: ast.AST, change: Callable[[ast.AST], object]) -> ast.AST:
    other = copy.deepcopy(node)
    change(other)
    return other


def constant(node: ast.Constant) -> Iterator[ast.AST]:
    value = node.value
    if isinstance(value, bool):
        yield ast.Constant(not value)
    elif isinstance(value, int):
        yield from map(ast.Constant, (value + 1, value - 1, 2 * value))
    elif isinstance(value, float):
        yield ast.Constant(1.1 * value or 1.0)
    elif isinstance(value, str) and hasattr(node, "is_compared"):
        yield ast.Constant(value + "?")


def comparison(node: ast.Compare) -> Iterator[ast.AST]:
    for place, operator in enumerate(node.ops):
        for other in (TURNED, SHIFTED):
            if type(operator) in other:
                yield with_changed(node, lambda n: n.ops.__setitem__(place, other[type(operator)]()))  # noqa: B023


def arithmetic(node: ast.BinOp | ast.AugAssign) -> Iterator[ast.AST]:
    if type(node.op) in EXCHANGED:
        yield with_changed(node, lambda n: setattr(n, "op", EXCHANGED[type(n.op)]()))
    if isinstance(node, ast.BinOp) and isinstance(node.op, DROPPED):
        yield from (node.left, node.right)


def logic(node: ast.BoolOp) -> Iterator[ast.AST]:
    yield with_changed(node, lambda n: setattr(n, "op", EXCHANGED[type(n.op)]()))
    for place in range(len(node.values)):
        rest = with_changed(node, lambda n: n.values.pop(place))  # noqa: B023
        yield rest if len(rest.values) > 1 else rest.values[0]


def sign(node: ast.UnaryOp) -> Iterator[ast.AST]:
    yield node.operand


def choice(node: ast.IfExp) -> Iterator[ast.AST]:
    yield from (node.body, node.orelse)


def comprehension(node: ast.ListComp) -> Iterator[ast.AST]:
    for outer, generator in enumerate(node.generators):
        for place in range(len(generator.ifs)):
            yield with_changed(node, lambda n: n.generators[outer].ifs.pop(place))  # noqa: B023


def call(node: ast.Call) -> Iterator[ast.AST]:
    """A keyword or the last argument dropped, two neighbours exchanged, the first in the place of the result."""
    name = getattr(node.func, "id", "")
    if name in OTHER_NAME:
        yield with_changed(node, lambda n: setattr(n.func, "id", OTHER_NAME[name]))
    for place, keyword in enumerate(node.keywords):
        if keyword.arg not in GUARDS:
            yield with_changed(node, lambda n: n.keywords.pop(place))  # noqa: B023
    if len(node.args) > 1:
        yield with_changed(node, lambda n: n.args.pop())
    for place in range(len(node.args) - 1):
        yield with_changed(node, lambda n: n.args.insert(place, n.args.pop(place + 1)))  # noqa: B023
    if node.args and not isinstance(node.args[0], (ast.Starred, ast.GeneratorExp)):
        yield node.args[0]


def branch(node: ast.expr) -> Iterator[ast.AST]:
    """A condition of which only one outcome is left."""
    yield from map(ast.Constant, getattr(node, "branches", ()))


def returned(node: ast.Return) -> Iterator[ast.AST]:
    if node.value is not None:
        yield ast.Return(ast.Constant(None))


def left_out(node: ast.stmt) -> Iterator[ast.AST]:
    """A statement without which the others still have their names."""
    if isinstance(node, ast.Expr) and not isinstance(node.value, (ast.Call, ast.Yield, ast.YieldFrom)):
        return
    if not isinstance(node, ast.Assign) or isinstance(node.targets[0], (ast.Attribute, ast.Subscript)):
        yield ast.Pass()


CHANGES: list[tuple] = [
    (ast.expr, branch),
    (ast.Constant, constant),
    (ast.Compare, comparison),
    ((ast.BinOp, ast.AugAssign), arithmetic),
    (ast.BoolOp, logic),
    (ast.UnaryOp, sign),
    (ast.IfExp, choice),
    (COMPREHENSIONS, comprehension),
    (ast.Call, call),
    (ast.Return, returned),
    ((ast.Expr, ast.Delete, ast.AugAssign, ast.Assign, ast.Raise, ast.Continue, ast.Break), left_out),
]


class Trial:
    """A copy of the repository in which one file is changed at a time, and its tests, each run in a forked child.

    The child takes over what this process has imported: pytest and the large libraries, but nothing of the course.
    """

    def __init__(self, seconds: float):
        self.seconds, self.tree = seconds, Path(tempfile.mkdtemp(prefix="mutants-")) / "course"
        left = shutil.ignore_patterns(".git", ".venv", "handouts", "handouts-staff", ".pytest_cache", ".ruff_cache")
        shutil.copytree(ROOT, self.tree, ignore=left)
        sys.path[:] = [str(self.tree), *(each for each in sys.path if not within(Path(each or "."), ROOT))]
        os.environ |= {"PYTHONPATH": str(self.tree), "OMP_NUM_THREADS": "1"}
        os.chdir(self.tree)
        import_libraries()

    def first_failure(self, path: str, mutated: str, tests: list[str]) -> str | None:
        """The first of the tests that fails with one file changed; None if all pass."""
        file = self.tree / path
        before = file.read_text("utf-8")
        for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*"):
            compiled.unlink()
        file.write_text(mutated, "utf-8")
        try:
            return self.run(tests)
        finally:
            file.write_text(before, "utf-8")

    def run(self, tests: list[str], keeps_compiled: bool = False) -> str | None:
        log = self.tree.parent / "log"
        child = os.fork() or run_tests(tests, log, keeps_compiled)
        deadline, ended = time.monotonic() + self.seconds, (0, 0)
        while not ended[0] and time.monotonic() < deadline:
            time.sleep(0.02)
            ended = os.waitpid(child, os.WNOHANG)
        if not ended[0]:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return f"no end after {self.seconds:.0f} s"
        lines = log.read_text("utf-8", "replace").splitlines()
        failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
        return None if os.waitstatus_to_exitcode(ended[1]) in (0, 5) else (failed or lines or ["died"])[-1]


def within(path: Path, folder: Path) -> bool:
    return path.resolve().is_relative_to(folder) and ".venv" not in path.parts


def import_libraries() -> None:
    import matplotlib.figure
    import nbformat  # noqa: F401
    import pydantic  # noqa: F401
    import pytest  # noqa: F401
    import torch  # noqa: F401
    import torch._subclasses.fake_tensor  # noqa: F401
    import transformers.models.llama.modeling_llama  # noqa: F401

    matplotlib.use("agg")


def run_tests(tests: list[str], log: Path, keeps_compiled: bool) -> None:
    """In the child: never returns."""
    os.setsid()
    sys.dont_write_bytecode = not keeps_compiled
    if not keeps_compiled:
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    told = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(told, 1)
    os.dup2(told, 2)
    import pytest

    code = pytest.main(["-x", "-q", "-p", "no:cacheprovider", "--tb=line", *tests])
    sys.stdout.flush()
    os._exit(code)


def stages(path: str, near_alone: bool, slow: bool) -> list[list[str]]:
    """Tests in the order in which they are asked: pinned answers, those of the file's name and room, all others."""
    pinned = [str(test.relative_to(ROOT)) for test in sorted((ROOT / "tests").rglob("test_pinned*.py"))]
    room, name = Path(path).parent.name, Path(path).stem
    near = [f"tests/{room}", f"tests/test_{name}.py", f"tests/{room}/test_{name}.py"]
    near = [test for test in near if (ROOT / test).exists()]
    told = [f"--ignore={test}" for test in (*pinned, *near, "tests/test_repository.py")]
    asked = [[*pinned, *near], ["tests", *told]][: 1 if near_alone else 2]
    quick = [[*tests, "-m", "not slow"] for tests in asked]
    return quick + [[*tests, "-m", "slow"] for tests in asked] * slow


def drawn(paths: Iterable[str], seed: int, kinds: Iterable[str]) -> list[tuple[str, str, str]]:
    """(file, change, changed source) of all mutants of all files, in random order."""
    files = [file for path in paths for file in sorted((ROOT / path).rglob("*.py") or [ROOT / path])]
    found = [
        (str(file.relative_to(ROOT)), *mutant) for file in files for mutant in mutants(file.read_text("utf-8"), kinds)
    ]
    random.Random(seed).shuffle(found)
    print(f"{len(found)} mutants of {len(files)} files", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("paths", nargs="+", help="files and folders, from the repository's root")
    parser.add_argument("--draw", type=int, help="so many at random; all, if it isn't given")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--near", action="store_true", help="no other tests than those that are likely to see them")
    parser.add_argument("--slow", action="store_true", help="ask slow tests about those that are left")
    parser.add_argument("--seconds", type=float, default=300, help="the longest that tests may take")
    names = [change.__name__ for _, change in CHANGES]
    parser.add_argument("--kinds", nargs="*", default=(), choices=names, help="of these kinds alone")
    parser.add_argument("--only", default="", help="mutants whose file and change contain this")
    asked = parser.parse_args()
    found = [each for each in drawn(asked.paths, asked.seed, asked.kinds) if asked.only in f"{each[0]} {each[1]}"]
    trial, left, checked = Trial(asked.seconds), [], set()
    for path, change, mutated in found[: asked.draw]:
        began, failed = time.monotonic(), None
        for tests in stages(path, asked.near, asked.slow):
            if tuple(tests) not in checked and (failed := trial.run(tests, keeps_compiled=True)):
                sys.exit(f"without any change: {failed}")
            checked.add(tuple(tests))
            if failed := trial.first_failure(path, mutated, tests):
                break
        left += [] if failed else [(path, change)]
        print(f"{time.monotonic() - began:5.1f} s  {path} {change}\n         {failed or 'NOT SEEN'}", flush=True)
    print(f"{len(found[: asked.draw]) - len(left)} seen, {len(left)} not:")
    print("\n".join(f"{path} {change}" for path, change in left))


if __name__ == "__main__":
    main()
