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
