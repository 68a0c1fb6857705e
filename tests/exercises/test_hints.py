"""Hints go by what went wrong: wrong answers of different causes get different hints, the same at each attempt."""

from importlib import import_module

import numpy as np
import pytest
from lab_cells import sources
from places import TESTS
from test_calibration import with_one_case

from labs_utils.exercises.attempts import grade, report_of
from labs_utils.exercises.contract import find

SEED, LEAST_CAUSES = 3, 3
LABS = sorted(path.stem.removeprefix("hinted_") for path in (TESTS / "exercises").glob("hinted_lab*.py"))
HINTED = {name: labels for lab in LABS for name, labels in import_module(f"hinted_{lab}").HINTED.items()}


@pytest.mark.slow
@pytest.mark.parametrize("exercise_id", HINTED)
def test_wrong_answers_of_different_causes_get_different_hints(exercise_id):
    exercise, labels = with_one_case(find(exercise_id), SEED), HINTED[exercise_id]
    given = {each.label: each for each in sources(exercise_id.partition(".")[0]) if each.exercise_id == exercise_id}
    results = {label: grade(exercise, given[label].function, np.random.default_rng(0), cases=1) for label in labels}
    assert {label: result.cause for label, result in results.items()} == labels
    assert all(f"hint: {exercise.hints[labels[label]]}" in report_of(exercise, results[label]) for label in labels)
    assert len(set(labels.values())) == len({exercise.hints[cause] for cause in labels.values()}) >= LEAST_CAUSES
