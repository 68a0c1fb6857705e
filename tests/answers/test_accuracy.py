"""The accuracy page: our estimate against every recorded run, and public calculators against the same runs."""

import pytest

from labs_utils.answers.accuracy import STEP_TIME, Errors, accelerate_says, deepspeed_says, error, errors_by_group
from labs_utils.coverage import why_not_estimated
from labs_utils.device import H200
from labs_utils.recordings import recorded
from labs_utils.run import LLAMA_8B, Run


@pytest.fixture(scope="module")
def found():
    return errors_by_group(H200, with_dry_run=False)


@pytest.mark.slow
def test_the_estimate_is_far_closer_to_the_recordings_than_calculators_that_leave_activations_out(found):
    everything = found["all"]
    assert everything["estimate"].median_percent <= 0.2 and everything["estimate"].largest_percent <= 1  # the targets
    assert everything["accelerate"].median_percent > 10 and everything["DeepSpeed"].median_percent > 10
    covered = [why_not_estimated(answer.run, H200) is None for answer in recorded() if answer.outcome == "ok"]
    assert everything["estimate"].count == sum(covered) > 0.95 * len(covered)


@pytest.mark.slow
def test_the_step_time_is_within_its_target(found):
    everything = found["all"][STEP_TIME]
    assert everything.median_percent <= 20 and everything.count > 0.9 * found["all"]["estimate"].count


@pytest.mark.slow
def test_every_group_is_within_the_target(found):
    for group, by_method in found.items():
        assert by_method["estimate"] is None or by_method["estimate"].largest_percent <= 1, group


def test_public_calculators_count_states_only():
    short, long = Run(model=LLAMA_8B, seq_len=128), Run(model=LLAMA_8B, seq_len=8192)
    for says in (accelerate_says, deepspeed_says):
        assert says(short, "H200") == says(long, "H200")
    assert deepspeed_says(short, "H200") == 20 * LLAMA_8B.parameters


def test_errors_are_sizes_and_a_method_without_an_answer_counts_nothing():
    assert Errors.of([-0.5, 0.25, None]) == Errors(2, 37.5, 50)
    assert Errors.of([None]) is None
    row = next(answer for answer in recorded() if answer.outcome == "ok")
    assert error(row, lambda run, device: 2 * row.peak_bytes) == 1 and error(row, lambda run, device: None) is None
