"""Live runs, each in a process of its own, and the file of answers that a killed recording leaves behind."""

import json
from functools import cache
from importlib import import_module

import pytest

from labs_utils.answer import Answer
from labs_utils.answers.dry_run import dry_run
from labs_utils.answers.estimate import estimate
from labs_utils.answers.measure import Worker, answer_in, measure_to_file, refusal
from labs_utils.run import LLAMA_8B, Run

QUICK = Run(seq_len=32)


RUNS = {
    "too large": Run(model=LLAMA_8B, precision="fp32", seq_len=2**20),
    "liger": QUICK.replace(layer_kernels="liger"),
    "infer": QUICK.replace(mode="infer"),
    "no kernel": QUICK.replace(attention="sdpa-efficient"),
    "quick": QUICK,
    "offloaded": QUICK.replace(checkpointing="offload"),
}


@cache
def measured() -> dict[str, Answer]:
    """What can't be measured on a CPU, and after that what can."""
    answers = list(measure_to_file(list(RUNS.values()), None, resume=False))
    assert [answer.run for answer in answers] == list(RUNS.values())
    return dict(zip(RUNS, answers, strict=True))


@pytest.mark.slow
def test_a_live_run_on_a_cpu_needs_what_the_dry_run_says():
    answer = measured()["quick"]
    assert (answer.outcome, answer.method, answer.device) == ("ok", "measure", "cpu")
    assert answer.peak_bytes == dry_run(QUICK).peak_bytes
    assert answer.provenance["phase_peak_bytes"] == dry_run(QUICK).provenance["phase_peak_bytes"]
    assert answer.step_seconds > 0 and answer.provenance["torch"]


@pytest.mark.slow
def test_a_run_that_cannot_be_made_here_is_an_answer():
    outcomes = {name: answer.outcome for name, answer in measured().items()}
    refused = {"too large": "out of memory"} | dict.fromkeys(("liger", "infer", "no kernel"), "unsupported")
    assert outcomes == refused | {"quick": "ok", "offloaded": "ok"}


@pytest.mark.slow
def test_what_is_offloaded_is_measured_as_the_hosts():
    answer, guess = measured()["offloaded"], estimate(RUNS["offloaded"], "cpu")
    assert answer.peak_bytes == pytest.approx(guess.peak_bytes, rel=1e-3)  # scalars, of the loss and of masks
    assert answer.provenance["host_bytes"] == pytest.approx(guess.provenance["host_bytes"], rel=1e-3)


@pytest.fixture
def quickly(monkeypatch):
    """Answers without a measurement, for what is done with them."""

    def measure_all(runs, settings):
        return (Answer(run=run, method="measure", device="cpu", peak_bytes=1) for run in runs)

    monkeypatch.setattr(import_module("labs_utils.answers.measure"), "measure_all", measure_all)


def test_a_last_line_without_its_newline_is_kept(quickly, tmp_path):
    out = tmp_path / "runs.jsonl"
    list(measure_to_file([QUICK], out, resume=False))
    out.write_bytes(out.read_bytes().rstrip())
    assert list(measure_to_file([QUICK], out, resume=True)) == []
    assert len(out.read_bytes().splitlines()) == 1


@pytest.mark.slow
def test_a_process_that_dies_is_an_answer():
    worker = Worker()
    worker.stop()
    answer = answer_in(worker, QUICK)
    assert answer.outcome == "crash" and "without an answer" in answer.provenance["reason"]


def test_resuming_repeats_nothing_and_mends_a_line_that_was_cut_off(quickly, tmp_path):
    out = tmp_path / "runs.jsonl"
    second = QUICK.replace(checkpointing="full")
    list(measure_to_file([QUICK], out, resume=False))
    first_line = out.read_bytes()
    out.write_bytes(first_line + b'{"run": {"model"')
    assert [answer.run for answer in measure_to_file([QUICK, second], out, resume=True)] == [second]
    lines = out.read_bytes().splitlines()
    assert lines[0] == first_line.strip() and len(lines) == 2
    assert [Run.parse(json.loads(line)["run"]) for line in lines] == [QUICK, second]


def test_only_what_would_not_fit_is_refused_before_it_starts():
    assert refusal(QUICK) is None
    assert refusal(Run(model=LLAMA_8B, seq_len=2**20))[0] == "out of memory"
