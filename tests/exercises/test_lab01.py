"""Lab 01's oracles: what they measure is what the lab says, and their cases tell right from wrong."""

import numpy as np
import pytest
import torch
from places import ROOT

from labs_utils.answers.dry_run import NoMemoryMode
from labs_utils.answers.estimate import estimate_timeline
from labs_utils.device import CPU
from labs_utils.exercises import kept, lab01, peaks
from labs_utils.exercises.contract import find
from labs_utils.exercises.grading import PUBLIC_SEED, grade
from labs_utils.exercises.judge import MEMORY_BYTES
from labs_utils.pages.fill import solutions
from labs_utils.run import LLAMA_8B

SOLUTIONS = solutions(ROOT / "solutions" / "lab01.py")


def solution(name):
    namespace = {}
    exec(SOLUTIONS[f"lab01.{name}"], namespace)
    return namespace[name]


def test_the_recipes_take_8_12_16_18_and_20_bytes_a_parameter():
    states = lab01.each_recipe(lab01.trained_state_bytes, {"parameters": 1000})
    assert [sum(state.values()) / 1000 for state in states.values()] == [8, 12, 16, 16, 18, 20]


@pytest.mark.parametrize("seed", range(3))
def test_a_layer_keeps_what_the_saved_tensors_of_the_meter_say(seed):
    case = lab01.draw_layer(np.random.default_rng(seed))
    assert lab01.saved_bytes.truth(case) == solution("saved_bytes")(**case)


def test_the_8b_models_layer_without_its_memory_keeps_what_the_stub_says():
    with NoMemoryMode():
        assert kept.layer_saved_bytes(LLAMA_8B.model_dump(), 4096) == 822_640_640


def test_compared_bytes_come_with_a_factor_and_a_cause():
    score, sentence = kept.compare_bytes(50, 100, 0, "too few", "too many")
    assert score == 0 and "0.5 times" in sentence and sentence.endswith("too few")
    assert kept.compare_bytes(7, 0, 0, "too few", "too many")[1].endswith("too many")
    assert "GB" in kept.compare_bytes(1e-3, 10**6, 0, "", "")[1]


def best_of_each_phase(run):
    best = {}
    for moment in estimate_timeline(peaks.parse(run), CPU).moments():
        phase = peaks.phase_of(moment.parts)
        best[phase] = max(best.get(phase, 0), moment.live_bytes)
    return best


@pytest.mark.parametrize("seed", range(20))
def test_one_run_peaks_in_each_phase_by_a_clear_margin(seed, monkeypatch):
    monkeypatch.setattr(peaks, "layer_saved_bytes", solution("saved_bytes"))  # quicker, and the same
    runs = peaks.draw_runs(np.random.default_rng(seed))
    for run, phase in zip(runs.values(), ("loss", "layer", "end"), strict=True):
        best = best_of_each_phase(run)
        answer = solution("peak")(run)
        assert answer["phase"] == phase == max(best, key=best.get)
        assert sorted(best.values())[-1] > 1.05 * sorted(best.values())[-2]
        assert answer["bytes"] == pytest.approx(best[phase], rel=0.9 * lab01.PEAK_TOLERANCE)


@pytest.mark.slow
def test_dry_runs_and_estimates_of_the_peaks_agree():
    runs = peaks.draw_runs(np.random.default_rng(PUBLIC_SEED))
    for run, dry in zip(runs.values(), lab01.peak.truth(runs).values(), strict=True):
        best = best_of_each_phase(run)
        assert dry["phase"] == max(best, key=best.get)
        assert dry["bytes"] == pytest.approx(best[dry["phase"]], rel=1e-3)


@pytest.mark.parametrize("seed", range(20))
def test_naive_logits_are_beyond_the_judges_cap_and_within_a_laptops_memory(seed):
    case = lab01.draw_loss(np.random.default_rng(seed))
    counted = int((lab01.loss_tensors(case)[2] != -100).sum())
    row_bytes = 2 * 4 * case["vocab_size"]  # logits and log-probabilities, fp32
    assert MEMORY_BYTES < counted * row_bytes and case["tokens"] * row_bytes < 1e9
    assert case["tokens"] % case["chunk_tokens"] and case["prompt_tokens"] > case["chunk_tokens"]


def test_turning_gradients_off_does_not_change_what_is_true():
    def nothing(module, inputs):
        torch.set_grad_enabled(False)
        return 0

    try:
        result = grade(find("lab01.measure_saved"), nothing, np.random.default_rng(0), cases=1)
    finally:
        torch.set_grad_enabled(True)
    assert result.score < 1 and result.outcome != "passed"
