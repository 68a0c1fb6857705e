"""Lab 03's oracles: their cases tell right from wrong, whatever the seed."""

import numpy as np
import pytest
import torch
from lab_cells import solution

from labs_utils.exercises.attempts import grade
from labs_utils.exercises.judge import MEMORY_BYTES
from labs_utils.exercises.lab03 import (
    accumulate,
    batch_plan,
    largest_micro_batch,
    micro_step_peaks,
    tracked_run,
)
from labs_utils.training.step import IGNORED_LABEL


@pytest.mark.parametrize("seed", range(20))
def test_a_plan_needs_rounding_up_and_not_always_the_largest_micro_batch(seed):
    plans = batch_plan.draw_plans(np.random.default_rng(seed))
    for name, plan in plans.items():
        per_rank = plan["target_tokens"] / plan["seq_len"] / plan["world_size"]
        first = batch_plan.first_plan(**plan)
        assert first["micro_batch"] <= plan["largest_micro_batch"]
        assert bool(per_rank % 1) == (first["tokens_per_step"] > plan["target_tokens"])
        assert bool(per_rank % 1) == (name not in ("full micro-steps", "even micro-steps"))
    full, even = plans["full micro-steps"], plans["even micro-steps"]
    assert batch_plan.first_plan(**full)["micro_batch"] == full["largest_micro_batch"]
    assert batch_plan.first_plan(**even)["micro_batch"] < even["largest_micro_batch"]
    few = plans["a few micro-steps"]
    assert batch_plan.first_plan(**few)["micro_batch"] < few["largest_micro_batch"]


@pytest.mark.parametrize("seed", range(20))
def test_micro_batches_are_unequal_and_together_beyond_the_judges_cap(seed):
    situations = accumulate.draw_accumulations(np.random.default_rng(seed))
    for name, situation in situations.items():
        _, batches = accumulate.model_and_batches(situation)
        counts = [int((batch["labels"][:, 1:] != IGNORED_LABEL).sum()) for batch in batches]
        assert (len(set(counts)) == 1) == (name == "equal counts")
        assert (0 in counts) == (name == "a micro-batch without labels")
    kept = [situation["bytes_per_token"] * batch["input_ids"].numel() for batch in batches]
    assert name == "many micro-batches" and max(kept) < MEMORY_BYTES / 4
    assert sum(kept) > 4 * MEMORY_BYTES and sum(sorted(kept)[: len(kept) // 2]) > 1.9 * MEMORY_BYTES


def test_the_full_batch_is_the_mean_over_all_targets():
    """Against sums by hand, in a model whose logits don't depend on what goes in."""
    model = accumulate.SmallModel(4, 2).double()
    for weight in model.parameters():
        torch.nn.init.zeros_(weight)
    labels = torch.tensor([[3, 1, 1, IGNORED_LABEL], [IGNORED_LABEL, 2, IGNORED_LABEL, IGNORED_LABEL]])
    batch = {"input_ids": labels.clamp(min=0), "labels": labels}
    assert accumulate.full_batch(model, [batch, batch]) == pytest.approx(np.log(4))


@pytest.mark.slow
def test_the_largest_micro_batch_starts_on_a_plateau():
    for seed in range(5):
        situation = largest_micro_batch.draw_searches(np.random.default_rng(seed))["many fit"]
        one, two, many, more = (largest_micro_batch.peak_bytes(situation["run"], n) for n in (1, 2, 100, 101))
        assert two - one < (more - many) / 2


@pytest.mark.parametrize("module", [micro_step_peaks, largest_micro_batch])
def test_gradients_that_were_turned_off_do_not_matter(module):
    tracked_run.tracked_micro_steps.cache_clear()
    largest_micro_batch.estimated_bytes.cache_clear()
    with torch.no_grad():
        assert grade(module.EXERCISE, solution(module.EXERCISE.id), np.random.default_rng(0), cases=1).score == 1


def test_a_micro_batch_may_be_numpys():
    situation = largest_micro_batch.draw_search(np.random.default_rng(0), 1)
    answer = largest_micro_batch.searched(lambda peak, memory: peak(np.int64(1)) <= memory, situation)
    assert answer == {"micro_batch": True, "calls": 1}
