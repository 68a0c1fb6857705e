"""Mutants of the exercises' solutions, judged: one that isn't equal to the solution must lose marks on every seed.

    python tests/exercise_mutants.py lab01.state_bytes lab02 --seeds 0 1 2

Besides the small faults of `mutants`, an argument or an item of one is replaced by each value that it takes in a case,
a string by the solution's other strings, and a loop ends early. A table counts what each exercise sees. What survives
is listed, and the exit is 1, unless it is in `EQUAL` with the reason why nobody could tell it from the solution.
"""

from __future__ import annotations

import argparse
import ast
import copy
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
from equal_mutants import EQUAL
from lab_cells import Source, sources
from mutants import is_wording, mutants, short, text_of
from tqdm import tqdm

from labs_utils.exercises.attempts import attempt, draw_cases
from labs_utils.exercises.contract import labs
from labs_utils.exercises.judge import judge

MOST_VALUES = 6  # of an argument
SECONDS = 20.0  # for the four cases of a mutant
SIMPLE = (bool, int, float, str, type(None))


def all_mutants(solution: Source) -> dict[str, str]:
    """Every changed source of a solution by what is changed in it."""
    told = dict(mutants(solution.text))
    return (
        told | dict(with_values(solution)) | dict(with_other_strings(solution.text)) | dict(ending_early(solution.text))
    )


def with_values(solution: Source) -> Iterator[tuple[str, str]]:
    """An argument, or an item of one that is a dict, replaced by each simple value that it takes in a case."""
    name = solution.exercise.function_name
    for argument, values in taken_values(solution).items():
        for value in values[:MOST_VALUES]:
            tree = ast.parse(solution.text)
            (function,) = [node for node in tree.body if getattr(node, "name", "") == name]
            place = 1 if is_wording(function.body[0]) else 0
            function.body[place:place] = ast.parse(f"{argument} = {value!r}").body
            yield f"{argument} = {value!r}"[:100], ast.unparse(tree)


def taken_values(solution: Source) -> dict[str, list]:
    """The simple values that each argument of a solution takes in a case: {"model['head_dim']": [32, 64]}."""
    taken: dict[str, list] = {}
    names = solution.function.__code__.co_varnames[: solution.function.__code__.co_argcount]

    def note(place: str, value: Any) -> None:
        if isinstance(value, SIMPLE) and value not in taken.setdefault(place, []):
            taken[place].append(value)

    def watched(*args, **kwargs):
        for name, value in [*zip(names, args, strict=False), *kwargs.items()]:
            items = value.items() if isinstance(value, dict) else ()
            note(name, value)
            for key, item in items:
                note(f"{name}[{key!r}]", item)
        return solution.function(*args, **kwargs)

    (case,) = draw_cases(solution.exercise, np.random.default_rng(0), 1)
    attempt(solution.exercise.call, watched, case)
    return taken


def with_other_strings(source: str) -> Iterator[tuple[str, str]]:
    """Each string of a solution replaced by each of its others: a label in the place of another."""
    strings = {node.value for node in string_nodes(ast.parse(source))}
    for number in range(len(list(string_nodes(ast.parse(source))))):
        for other in sorted(strings):
            tree = ast.parse(source)
            node = list(string_nodes(tree))[number]
            if node.value != other:
                told = f"line {node.lineno}: {node.value!r} -> {other!r}"
                node.value = other
                yield told, ast.unparse(tree)


def string_nodes(tree: ast.AST) -> Iterator[ast.Constant]:
    docstrings = [node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in docstrings:
            yield node


def ending_early(source: str) -> Iterator[tuple[str, str]]:
    """Each loop left after its first turn."""
    tree = ast.parse(source)
    for number, loop in enumerate(node for node in ast.walk(tree) if isinstance(node, (ast.For, ast.While))):
        changed = copy.deepcopy(tree)
        same = [node for node in ast.walk(changed) if isinstance(node, (ast.For, ast.While))][number]
        same.body.append(ast.Break())
        yield f"line {loop.lineno}: {short(text_of(loop).splitlines()[0])} ends early", ast.unparse(changed)


def survives(solution: Source, changed: str, seed: int) -> bool:
    result = judge(solution.exercise_id, changed, seed=seed, seconds=SECONDS, setup=solution.setup)
    return result.score == 1


def survivors(solution: Source, seeds: list[int]) -> tuple[int, list[str]]:
    """How many mutants of a solution there are, and those that get full marks on a seed."""
    every = all_mutants(solution)
    known = EQUAL.get(solution.exercise_id, {})
    assert known.keys() <= every.keys(), f"no such mutants: {known.keys() - every.keys()}"
    tried = tqdm([told for told in every if told not in known], solution.exercise_id, leave=False)
    return len(every), [told for told in tried if any(survives(solution, every[told], seed) for seed in seeds)]


def asked(names: list[str]) -> list[Source]:
    """The solutions of exercises and of labs, by name; of all where there is none."""
    every = [each for lab in labs() for each in sources(lab) if each.label == "solution"]
    return [each for each in every if not names or {each.exercise_id, each.exercise_id.partition(".")[0]} & set(names)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", help="exercises or labs, such as lab01.peak or lab02")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    given, left = parser.parse_args(), 0
    for solution in asked(given.names):
        count, surviving = survivors(solution, given.seeds)
        left += len(surviving)
        known = len(EQUAL.get(solution.exercise_id, {}))
        print(f"{solution.exercise_id:28} {count:4} mutants, {known} equal, {len(surviving)} survive", flush=True)
        for told in surviving:
            print(f"    {told}", flush=True)
    sys.exit(left > 0)


if __name__ == "__main__":
    main()
