"""An answer says nothing that doesn't add up, and goes to JSON and back."""

import json

import pytest
from pydantic import ValidationError

from labs_utils.answer import PARTS, Answer
from labs_utils.run import Run

RUN = Run(seq_len=64)
PEAK = {"peak_bytes": 28, "phase": "backward", "parts": dict(zip(PARTS, range(1, 8), strict=True))}


def answer(**fields):
    return Answer(run=RUN, method="estimate", **fields)


def test_an_answer_goes_to_json_and_back():
    given = answer(device="H200", step_seconds=1.5, provenance={"operator": "mul", "torch": [2, 11]}, **PEAK)
    assert Answer.model_validate(json.loads(json.dumps(given.to_dict()))) == given


def test_parts_sum_to_the_peak_or_are_refused():
    with pytest.raises(ValidationError, match="parts sum to 28 bytes, the peak is 29"):
        answer(**{**PEAK, "peak_bytes": 29})
    with pytest.raises(ValidationError, match="the peak is None"):
        answer(parts=PEAK["parts"])


def test_a_method_that_cant_know_the_parts_leaves_them_out():
    assert answer(peak_bytes=28).parts is None


@pytest.mark.parametrize(
    "field",
    [{"peak_bytes": -1}, {"peak_bytes": 1.5}, {"step_seconds": -1.0}, {"step_seconds": float("nan")}, {"guess": 1}],
    ids=str,
)
def test_impossible_values_are_refused(field):
    with pytest.raises(ValidationError):
        answer(**field)


def test_a_method_is_one_of_four():
    with pytest.raises(ValidationError, match="'estimate', 'dry_run', 'measure' or 'recall'"):
        Answer(run=RUN, method="guess")


def test_an_unsupported_run_has_a_reason_and_no_numbers():
    given = Answer.unsupported(RUN, "dry_run", "cpu", "it isn't covered yet")
    assert given.outcome == "unsupported" and given.provenance == {"reason": "it isn't covered yet"}
    assert given.peak_bytes is given.parts is given.phase is given.step_seconds is None


def test_an_answer_cant_be_changed():
    with pytest.raises(ValidationError, match="frozen"):
        answer().outcome = "ok"
