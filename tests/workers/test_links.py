"""The worker that times collectives: real ranks over gloo."""

import pytest

from labs_utils.workers.launch import launch

pytestmark = pytest.mark.slow
SIZES = [4096, 65536]


def test_each_rank_times_each_collective_at_each_size():
    ranks = launch("labs_utils.workers.links", {"bytes": SIZES}, 2, 120, show=lambda text: None)
    assert len(ranks) == 2
    for found in ranks:
        asked = [(name, size) for size in SIZES for name in ("all_reduce", "all_gather", "reduce_scatter")]
        assert [(each["collective"], each["bytes"]) for each in found] == asked
        for seconds in (each["seconds"] for each in found):
            assert 0 < seconds["p20"] <= seconds["median"] <= seconds["p80"]
