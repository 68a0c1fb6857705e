"""A right answer is right in any natural form: of every exercise, whatever its solution returns is given in each."""

from collections import Counter, OrderedDict, defaultdict
from fractions import Fraction
from types import MappingProxyType

import numpy as np
import pytest
import torch
from lab_cells import sources
from test_calibration import with_one_case

from labs_utils.exercises.attempts import grade
from labs_utils.exercises.contract import labs
from labs_utils.exercises.judge import judge

SEED = 3
NUMBERS = {
    "0-d tensors": lambda number: torch.tensor(number),
    "0-d arrays": lambda number: np.array(number),
    "numpy's numbers": lambda number: np.array(number)[()],
    "integral floats": lambda number: float(number),
    "fractions": lambda number: Fraction(number),
}
LISTS = {"tuples": tuple, "arrays": np.array, "tensors": torch.tensor}
DICTS = {
    "Counter": Counter,
    "OrderedDict": OrderedDict,
    "defaultdict": lambda value: defaultdict(int, value),
    "read-only mappings": MappingProxyType,
}
FORMS = NUMBERS | LISTS | DICTS | {"numpy's str": np.str_}
SOLVED = [each for lab in labs() for each in sources(lab) if each.label == "solution"]


def in_form(value, form):
    """The value with its numbers, lists, dicts or strs in that form."""
    if type(value) is dict:
        items = {key: in_form(item, form) for key, item in value.items()}
        return DICTS[form](items) if form in DICTS else items
    if type(value) is list:
        items = [in_form(item, form) for item in value]
        return LISTS[form](items) if form in LISTS else items
    if type(value) in (int, float) and form in NUMBERS:
        return NUMBERS[form](value)
    return np.str_(value) if type(value) is str and form == "numpy's str" else value


@pytest.mark.slow
@pytest.mark.parametrize("solved", SOLVED, ids=lambda each: each.exercise_id)
def test_a_right_answer_passes_in_every_natural_form(solved):
    exercise, function = with_one_case(solved.exercise, SEED), solved.function
    refused = {}
    for form in FORMS:
        result = grade(exercise, lambda *args: in_form(function(*args), form), np.random.default_rng(0), cases=1)  # noqa: B023
        if result.score < 1:
            refused[form] = result.message
    assert refused == {}


NEWER_COLLECTIVES = {
    "group.size()": "dist.get_world_size(group)",
    "group.rank()": "dist.get_rank(group)",
    "dist.reduce_scatter(mine, list(torch.nn.functional.pad(gradient, (0, padding)).split(share)), group=group)": (
        "dist.reduce_scatter_tensor(mine, torch.nn.functional.pad(gradient, (0, padding)), group=group)"
    ),
    "dist.all_gather(parts, part, group=group)": "dist.all_gather_into_tensor(parts, part, group=group)",
    "[torch.empty(share) for _ in range(ranks)]": "torch.empty(share * ranks)",
    "torch.cat(parts)": "parts",
}


@pytest.mark.slow
def test_collectives_that_take_one_tensor_are_as_good_as_those_that_take_lists():
    (solved,) = (each for each in SOLVED if each.exercise_id == "lab04.zero1_step")
    text = solved.text
    for old, new in NEWER_COLLECTIVES.items():
        assert old in text
        text = text.replace(old, new)
    assert judge(solved.exercise_id, text, seed=SEED, setup=solved.setup).outcome == "passed"
