"""Lab 04's oracles: their cases tell right from wrong, whatever the seed."""

import numpy as np
import pytest

from labs_utils.exercises.judge import MEMORY_BYTES
from labs_utils.exercises.lab04 import lowest_stage, zero1_step
from labs_utils.exercises.lab04.stages import STAGES, bytes_at


@pytest.mark.parametrize("seed", range(20))
def test_replicated_moments_are_beyond_the_judges_cap_and_parts_are_far_below(seed):
    situation = zero1_step.draw_trainings(np.random.default_rng(seed))["many groups of parameters"]
    moments = 8 * situation["numel"] * situation["groups"]
    assert moments * situation["world_size"] > 0.7 * MEMORY_BYTES and moments < MEMORY_BYTES / 5


@pytest.mark.parametrize("seed", range(20))
def test_cards_are_never_close_to_a_boundary(seed):
    for card in lowest_stage.draw_cards(np.random.default_rng(seed)).values():
        room, counters = card["memory_bytes"] - card["other_bytes"], 4 * len(card["numels"])  # Adam's, of steps
        for stage in STAGES:
            need = bytes_at(stage, card["world_size"]) * sum(card["numels"])
            assert abs(room - need) > 50 * counters
