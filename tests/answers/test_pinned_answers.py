"""Estimates of runs that pass through every branch of the models are, to the byte, what they were."""

import json

import pytest
from pinned_answers import SHAPE, answered, lines, runs

from labs_utils import Run, find_device
from labs_utils.answers.dry_run import dry_run
from labs_utils.coverage import why_not_dry_run

LINES = lines()
AGREEMENT = 1e-3  # of estimate and dry run, as in test_estimate: scalars, and blocks that stay unsplit


@pytest.mark.parametrize("line", LINES, ids=lambda line: str(LINES.index(line)))
def test_an_answer_changes_only_on_purpose(line):
    answer, expected = json.loads(json.dumps(answered(line["run"], line["device"]))), dict(line["answer"])
    seconds, expected_seconds = (told.pop("step_seconds_terms", {}) for told in (answer, expected))
    assert answer == expected
    assert seconds == pytest.approx(
        expected_seconds, rel=1e-9, abs=1e-15
    )  # floats are summed in another order elsewhere


def test_the_pinned_runs_are_those_that_are_listed():
    assert json.dumps([[line["run"], line["device"]] for line in LINES]) == json.dumps(list(map(list, runs())))


DRY = [line for line in LINES if line["answer"]["outcome"] == "ok" and "engine" not in line["run"]]


@pytest.mark.slow
@pytest.mark.parametrize("line", DRY, ids=lambda line: str(LINES.index(line)))
def test_a_pinned_answer_is_the_dry_runs(line):
    """So that what is pinned is no accident: the real code, over tensors without memory, needs the same."""
    run = Run.parse({"model": SHAPE, **line["run"]})
    if reason := why_not_dry_run(run, find_device(line["device"])):
        pytest.skip(reason)
    dry = dry_run(run, line["device"])
    assert line["answer"]["peak_bytes"] == pytest.approx(dry.peak_bytes, rel=AGREEMENT)
    assert line["answer"]["phase_peak_bytes"] == pytest.approx(dry.provenance["phase_peak_bytes"], rel=AGREEMENT)
