"""Answers stay as they are until someone changes them on purpose: `pinned_runs.py` says of which runs."""

import random

import pytest
from pinned_runs import cases, device_of, observed, pinned
from test_estimate import AGREEMENT

from labs_utils import Run
from labs_utils.answers import dry_run_timeline, estimate_timeline
from labs_utils.coverage import why_not_dry_run

PINNED = pinned()
CASES = {name: (device, fields) for name, device, fields in cases()}
SECONDS = ("step_seconds_terms", "seconds_with_8_threads")
ROUNDING = 1e-9  # floats may be added up in another order


def test_every_run_is_pinned_once():
    assert [name for name, *_ in cases()] == list(PINNED)


# In random order, so that a fault anywhere is seen early.
@pytest.mark.parametrize("name", random.Random(1).sample(list(CASES), len(CASES)))
def test_an_answer_is_as_pinned(name):
    device, fields = CASES[name]
    told, expected = observed(fields, device), PINNED[name]
    assert told.keys() == expected.keys()
    for key in SECONDS:
        assert (told.get(key) or 0) == pytest.approx(expected.get(key) or 0, rel=ROUNDING)
    assert {key: told[key] for key in told if key not in SECONDS} == {
        key: expected[key] for key in expected if key not in SECONDS
    }


def dry_runnable():
    """Small pinned runs of plain PyTorch, which a dry run can make too."""
    for name, (device, fields) in CASES.items():
        run = Run.parse(fields)
        if device in ("cpu", "H200") and run.model.hidden_size < 1000 and PINNED[name]["outcome"] == "ok":
            if why_not_dry_run(run, device_of(device)) is None:
                yield pytest.param(run, device_of(device), id=name)


@pytest.mark.slow
@pytest.mark.parametrize("run, device", list(dry_runnable()))
def test_the_tensors_of_what_is_pinned_are_those_of_torchs_own_operators(run, device):
    """Tensors, not the allocator's blocks: of those one of 2 MiB may be cut elsewhere by the order of a few tensors."""
    estimated, dry = estimate_timeline(run, device), dry_run_timeline(run, device)
    assert estimated.peak().live_bytes == pytest.approx(dry.peak().live_bytes, rel=AGREEMENT)
    assert estimated.phase_peak_bytes() == pytest.approx(dry.phase_peak_bytes(), rel=AGREEMENT)
    assert estimated.host_peak_bytes() == pytest.approx(dry.host_peak_bytes(), rel=AGREEMENT)
