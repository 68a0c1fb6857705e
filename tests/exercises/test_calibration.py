"""Every exercise of every lab: a stub earns nothing, the solution everything, and no wrong answer full marks.

A wrong answer whose label begins with "memory_" is right but takes too much memory.
"""

import sys
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from lab_cells import OURS, TOYS, sources

from labs_utils.exercises.attempts import PUBLIC_SEED, draw_cases, grade, report_of
from labs_utils.exercises.contract import exercises_of, find, labs
from labs_utils.exercises.forbidden import forbidden_uses
from labs_utils.exercises.judge import MEMORY_BYTES, judge

LABS = [("lab90", TOYS), *((lab, OURS) for lab in labs())]
LABELS = ("stub", "solution")  # of what is no wrong answer
LEAST_WRONG_ANSWERS = 3
SEED = 20
SEEDS = (PUBLIC_SEED, SEED, 0)
# Exercises of which a case takes seconds, with all wrong answers: they get the first seed.
COSTLY = (
    "lab01.peak",
    "lab01.chunked_loss",
    "lab02.cheapest_policy",
    "lab02.checkpoint",
    "lab04.zero1_step",
    "lab05.cpu_offloaded_adam",
)
COSTLY_SEEDS = 1
# Without what is there only for the cap, and takes as long as all the rest.
ONLY_FOR_THE_CAP = {"lab04.zero1_step": "many groups of parameters"}


def slow_if(is_slow):
    return [pytest.mark.slow] * is_slow


def exercises_and_seeds():
    """An exercise with each of its seeds, cheap ones first."""
    every = [(exercise.id, course) for lab, course in LABS for exercise in exercises_of(lab, course.package)]
    for exercise_id, course in sorted(every, key=lambda each: each[0] in COSTLY):
        for seed in SEEDS[: COSTLY_SEEDS if exercise_id in COSTLY else None]:
            yield pytest.param(exercise_id, course, seed, id=f"{exercise_id}-{seed}", marks=slow_if(course is OURS))


def sources_of(exercise_id, course):
    lab = exercise_id.partition(".")[0]
    return [each for each in sources(lab, course) if each.exercise_id == exercise_id]


def with_one_case(exercise, seed):
    """The exercise with one case, and a truth that is found once for all who are graded on it."""
    (case,) = draw_cases(exercise, np.random.default_rng(seed), 1)
    if exercise.id in ONLY_FOR_THE_CAP:
        del case[ONLY_FOR_THE_CAP[exercise.id]]
    truth = exercise.truth(case)
    return replace(exercise, draw=lambda rng: case, truth=lambda case: truth)


@pytest.mark.parametrize("lab, course", LABS, ids=[lab for lab, _ in LABS])
def test_every_exercise_has_a_stub_a_solution_and_three_wrong_answers(lab, course):
    ids = [exercise.id for exercise in exercises_of(lab, course.package)]
    by_label = {label: [each.exercise_id for each in sources(lab, course) if each.label == label] for label in LABELS}
    wrong = Counter(each.exercise_id for each in sources(lab, course) if each.label not in LABELS)
    assert by_label == {"stub": ids, "solution": ids}
    assert set(wrong) == set(ids) and min(wrong.values()) >= LEAST_WRONG_ANSWERS


@pytest.mark.parametrize("lab, course", LABS, ids=[lab for lab, _ in LABS])
def test_no_solution_uses_a_forbidden_name(lab, course):
    solved = [each for each in sources(lab, course) if each.label == "solution"]
    assert {each.exercise_id: forbidden_uses(each.exercise, each.text) for each in solved} == {
        each.exercise_id: () for each in solved
    }


@pytest.mark.parametrize("exercise_id, course, seed", list(exercises_and_seeds()))
def test_a_single_case_tells_the_solution_from_every_wrong_answer(exercise_id, course, seed):
    exercise = with_one_case(find(exercise_id, course.package), seed)
    results = {
        each.label: grade(exercise, each.function, np.random.default_rng(seed), cases=1)
        for each in sources_of(exercise_id, course)
        if not each.label.startswith("memory_")
    }
    assert (results["stub"].score, results["stub"].outcome) == (0, "not attempted")
    assert results["solution"].outcome == "passed", results["solution"]
    assert [label for label, result in results.items() if result.score == 1] == ["solution"]


IN_MEMORY = [each for lab in labs() for each in sources(lab) if each.label.startswith("memory_")]


@pytest.mark.slow
@pytest.mark.parametrize("source", IN_MEMORY, ids=lambda source: f"{source.exercise_id}-{source.label}")
def test_too_much_memory_is_seen_in_the_notebook_too(source):
    exercise = with_one_case(source.exercise, SEED)
    result = grade(exercise, source.function, np.random.default_rng(SEED), cases=2)  # some keep what the first one made
    assert (result.score < 1, result.outcome, result.cause) == (True, "memory", "memory"), result
    assert f"hint: {exercise.hints['memory']}" in report_of(exercise, result)


def for_the_judge():
    """What another process can tell: all solutions, all that take too much memory; one stub and one mistake a lab."""
    for lab, course in LABS:
        all_of_lab = sources(lab, course)
        mistake = next(each for each in all_of_lab if each.label not in LABELS and not each.label.startswith("memory_"))
        chosen = [all_of_lab[0], mistake]
        chosen += [each for each in all_of_lab if each.label == "solution" or each.label.startswith("memory_")]
        for each in chosen:
            yield pytest.param(each, id=f"{each.exercise_id}-{each.label}", marks=slow_if(course is OURS))


def judged(source):
    memory_bytes = MEMORY_BYTES if source.course is OURS else 128 * 2**20
    caps = {"seed": SEED, "memory_bytes": memory_bytes, "setup": source.setup}
    return judge(source.exercise_id, source.text, package=source.course.package, **caps)


@pytest.mark.skipif(sys.platform != "linux", reason="the judge's caps are Linux's")
@pytest.mark.parametrize("source", list(for_the_judge()))
def test_in_the_judge_every_source_gets_what_it_deserves(source):
    result = judged(source)
    if source.label == "stub":
        assert (result.score, result.outcome) == (0, "not attempted")
    elif source.label == "solution":
        counted = find(source.exercise_id, source.course.package).self_reported
        flags = (f"self-reported: {counted}",) if counted else ()
        assert (result.score, result.outcome, result.flags) == (1, "passed", flags), result
    elif source.label.startswith("memory_"):
        assert result.outcome == "memory", result
    assert (result.score == 1) == (source.label == "solution")
