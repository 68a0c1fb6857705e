"""Lab 01's oracles: what they measure is what the lab says, and their cases tell right from wrong."""

import numpy as np
import pytest
import torch
from lab_cells import solution

from labs_utils.answers.dry_run import NoMemoryMode
from labs_utils.answers.estimate import estimate_timeline
from labs_utils.device import CPU
from labs_utils.exercises.attempts import PUBLIC_SEED, grade
from labs_utils.exercises.judge import MEMORY_BYTES
from labs_utils.exercises.lab01 import chunked_loss, measure_saved, peak, saved_bytes, state_bytes
from labs_utils.exercises.marking import compare_bytes
from labs_utils.exercises.saved_bytes import layer_saved_bytes
from labs_utils.run import LLAMA_8B


def test_the_recipes_take_8_12_16_18_and_20_bytes_a_parameter():
    states = state_bytes.EXERCISE.truth({"parameters": 1000})
    assert [sum(state.values()) / 1000 for state in states.values()] == [8, 12, 16, 16, 18, 20]


@pytest.mark.parametrize("seed", range(3))
def test_a_layer_keeps_what_the_saved_tensors_of_the_meter_say(seed):
    case = saved_bytes.draw_layer(np.random.default_rng(seed))
    assert saved_bytes.EXERCISE.truth(case) == solution("lab01.saved_bytes")(**case)


def test_the_8b_models_layer_without_its_memory_keeps_what_the_stub_says():
    with NoMemoryMode():
        assert layer_saved_bytes(LLAMA_8B.model_dump(), 4096) == 822_640_640


def test_compared_bytes_come_with_a_factor_and_a_cause():
    likely = {"too_few": "too few", "too_many": "too many"}
    mark = compare_bytes(None, 50, 100, **likely)
    assert mark.score == 0 and "0.5 times" in mark.sentence and mark.sentence.endswith("too few")
    assert compare_bytes(None, 7, 0, **likely).sentence.endswith("too many")
    assert "GB" in compare_bytes(None, 1e-3, 10**6).sentence


def best_of_each_phase(run):
    best = {}
    for moment in estimate_timeline(peak.parse(run), CPU).moments():
        phase = peak.phase_of(moment.parts)
        best[phase] = max(best.get(phase, 0), moment.live_bytes)
    return best


@pytest.mark.parametrize("seed", range(20))
def test_runs_peak_in_each_phase_by_a_clear_margin(seed, monkeypatch):
    monkeypatch.setattr(peak, "layer_saved_bytes", solution("lab01.saved_bytes"))  # quicker, and the same
    runs = peak.draw_runs(np.random.default_rng(seed))
    for run, phase in zip(runs.values(), ("loss", "layer", "layer", "layer", "end"), strict=True):
        best = best_of_each_phase(run)
        answer = solution("lab01.peak")(run)
        assert answer["phase"] == phase == max(best, key=best.get)
        assert sorted(best.values())[-1] > 1.05 * sorted(best.values())[-2]
        assert answer["bytes"] == pytest.approx(best[phase], rel=0.9 * peak.PEAK_TOLERANCE)


@pytest.mark.slow
def test_dry_runs_and_estimates_of_the_peaks_agree():
    runs = peak.draw_runs(np.random.default_rng(PUBLIC_SEED))
    for run, dry in zip(runs.values(), peak.EXERCISE.truth(runs).values(), strict=True):
        best = best_of_each_phase(run)
        assert dry["phase"] == max(best, key=best.get)
        assert dry["bytes"] == pytest.approx(best[dry["phase"]], rel=1e-3)


@pytest.mark.parametrize("seed", range(20))
def test_naive_logits_are_beyond_the_judges_cap_and_within_a_laptops_memory(seed):
    case = chunked_loss.draw_loss(np.random.default_rng(seed))
    counted = int((chunked_loss.loss_tensors(case)[2] != -100).sum())
    row_bytes = 2 * 4 * case["vocab_size"]  # logits and log-probabilities, fp32
    assert MEMORY_BYTES < counted * row_bytes and case["tokens"] * row_bytes < 1e9
    assert case["tokens"] % case["chunk_tokens"] and case["prompt_tokens"] > case["chunk_tokens"]


def test_turning_gradients_off_does_not_change_what_is_true():
    def nothing(module, inputs):
        torch.set_grad_enabled(False)
        return 0

    try:
        result = grade(measure_saved.EXERCISE, nothing, np.random.default_rng(0), cases=1)
    finally:
        torch.set_grad_enabled(True)
    assert result.score < 1 and result.outcome != "passed"
