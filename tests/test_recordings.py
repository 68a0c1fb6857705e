"""Recorded runs: found exactly, labelled as recorded, and readable line by line."""

import json

import pytest

from labs_utils.answer import Answer
from labs_utils.answers.estimate import estimate
from labs_utils.coverage import why_not_dry_run
from labs_utils.device import H200
from labs_utils.recordings import RecordedLineWarning, benchmarks, recall, recorded
from labs_utils.run import LLAMA_8B, Run

RECORDED_OK = [answer for answer in recorded() if answer.outcome == "ok"]
OUT_OF_MEMORY = [answer for answer in recorded() if answer.outcome == "out of memory"]


def test_a_recorded_run_is_found_by_its_fields_and_nothing_is_interpolated():
    run = Run(model=LLAMA_8B, seq_len=4096, checkpointing="full")
    (answer,) = recall(run, H200)
    assert answer.method == "recall" and answer.run == run and answer.provenance["gpu"] == "NVIDIA H200"
    assert recall(run.replace(seq_len=4097), H200) == [] and recall(run, "T4") == []


def test_at_least_sixty_recorded_runs_differ_in_memory():
    assert len({answer.peak_bytes for answer in RECORDED_OK}) >= 60


# A fifth of them are quick enough to be looked at all the time: `test_pinned_answers.py` sees a change of the others.
@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(answer, id=str(answer.peak_bytes), marks=[pytest.mark.slow] if number % 5 else [])
        for number, answer in enumerate(RECORDED_OK)
    ],
)
def test_the_estimate_is_within_a_tenth_of_a_percent_of_a_recorded_peak(answer):
    """The project's own target is 1 %; what is left here is the allocator's choice between equal blocks.

    Which blocks it leaves unsplit, by up to 1 MiB each, matters more where all blocks are small: 0.24 % of 125M.
    """
    estimated = estimate(answer.run, answer.device)
    if estimated.outcome == "unsupported":
        pytest.skip(estimated.provenance["reason"])
    assert estimated.outcome == "ok"
    small = answer.run.model.parameters < 2e8
    assert estimated.peak_bytes == pytest.approx(answer.peak_bytes, rel=3e-3 if small else 1e-3)
    assert estimated.phase == answer.phase
    host_bytes = answer.provenance.get("host_bytes", 0)
    assert estimated.provenance.get("host_bytes", 0) == pytest.approx(host_bytes, rel=3e-3)


@pytest.mark.parametrize("answer", OUT_OF_MEMORY, ids=lambda answer: f"{answer.run.seq_len}x{answer.run.micro_batch}")
def test_what_ran_out_of_memory_is_estimated_to(answer):
    """Four of these peaks would fit in the GPU's memory, but for fragmentation."""
    assert estimate(answer.run, answer.device).outcome == "out of memory"


def test_recorded_rows_say_where_they_come_from():
    for answer in recorded():
        assert {"gpu", "torch", "transformers", "driver", "date", "command"} <= answer.provenance.keys()


@pytest.mark.parametrize("broken", ['{"run": {"seq_len": -1}, "method": "measure"}', '{"run"', "[1]", '{"run": {}}'])
def test_a_broken_line_is_one_warning_with_its_number_and_the_rest_is_read(tmp_path, broken):
    good = json.dumps(estimate(Run(seq_len=16), "cpu").to_dict())
    path = tmp_path / "runs.jsonl"
    path.write_text(f"{good}\n{broken}\n{good}\n")
    with pytest.warns(RecordedLineWarning, match="runs.jsonl, line 2") as caught:
        answers = recorded(path)
    assert len(caught) == 1 and len(answers) == 2
    assert all(isinstance(answer, Answer) for answer in answers)


def test_most_recorded_runs_can_be_dry_run():
    assert sum(why_not_dry_run(answer.run, H200) is None for answer in RECORDED_OK) > len(RECORDED_OK) / 2


def test_recorded_rates_of_the_reference_gpu_are_found_by_subject():
    rates = {line.subject: line for line in benchmarks(H200)}
    pinned, pageable = (rates[f"copy host to device, {kind}"].value["median"] for kind in ("pinned", "pageable"))
    assert pinned > 5 * pageable and rates["matmul bf16"].unit == "FLOP/s"
    assert all(line.value["p20"] <= line.value["median"] <= line.value["p80"] for line in rates.values())
    assert benchmarks("T4") == []
