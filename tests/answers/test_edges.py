"""At the edges of the rules: the last size for which one holds, and the first for which it doesn't.

Sizes are those of the small shape: an embedding of 32,000 elements, MLP weights of 11,264, norms of 64.
"""

import pytest
from helpers import SHAPE, phase_peaks, small_run

from labs_utils import H200, TINY, Run, estimate, find_device
from labs_utils.answers import estimate_timeline
from labs_utils.memory_model.host_memory import bytes_of_states, offloaded_bytes
from labs_utils.memory_model.ranks import candidate_ranks
from labs_utils.time_model.offload import offload_seconds, recorded_host_rates

EMBEDDING, NORM = SHAPE["vocab_size"] * SHAPE["hidden_size"], SHAPE["hidden_size"]


def tensors_of(run, operator, device="cpu"):
    """The bytes of the tensors that an operator makes in a step, in order."""
    events = estimate_timeline(run, find_device(device)).events
    phases = ("forward", "backward", "optimizer")
    return [event.change_bytes for event in events if event.phase in phases and event.operator == operator]


def zero_run(stage, ranks=2, **keys):
    return small_run(zero_stage=stage, world_size=ranks, precision="bf16-master", zero=keys)


def sorting_bytes(tokens):
    """What embedding's backward takes for itself on an H200."""
    run = small_run(seq_len=tokens, checkpointing="full")
    return [nbytes for nbytes in tensors_of(run, "embedding", "H200") if nbytes in (8 * tokens, *of_sums(tokens))]


def of_sums(tokens):
    segments = tokens // 10 + min(tokens, SHAPE["vocab_size"])
    return 8 * segments, 4 * segments * SHAPE["hidden_size"]


def test_up_to_3072_tokens_the_embedding_sorts_nothing():
    assert sorting_bytes(3072) == []
    assert sorting_bytes(3073) == [8 * 3073] * 3 + list(of_sums(3073))


def test_a_gradient_as_large_as_the_bucket_moves_into_it_and_a_larger_one_stays_beside_it():
    """Of a single token little but gradients is live; those of 16 bits take 2 bytes an element, as the bucket does."""
    fits, too_large = (
        phase_peaks(estimate(zero_run(1, reduce_bucket_size=size).replace(seq_len=1), "cpu"))["backward"] - 2 * size
        for size in (EMBEDDING, EMBEDDING - 1)
    )
    assert too_large - fits == 2 * EMBEDDING


def test_a_stage_3_bucket_that_is_just_full_is_sent_whole():
    """The head's gradient comes first, then that of the last norm; sent together they are copied rank by rank."""
    full, short = (
        tensors_of(zero_run(3, reduce_bucket_size=size), "reduce_scatter")[0]
        for size in (EMBEDDING + NORM, EMBEDDING + NORM - 1)
    )
    assert full == 2 * (EMBEDDING + NORM) != short


def test_a_weight_at_the_persistence_threshold_stays_and_a_larger_one_is_partitioned():
    """Norms that stay are gathered once a step, at its end; others for forward and again for backward."""
    keys = {"stage3_max_reuse_distance": 0, "stage3_prefetch_bucket_size": 0}
    norms_of = (
        [size for size in tensors_of(zero_run(3, stage3_param_persistence_threshold=at, **keys), "all_gather")]
        for at in (NORM, NORM - 1)
    )
    norms = 2 * SHAPE["num_hidden_layers"] + 1
    assert [sizes.count(2 * NORM) for sizes in norms_of] == [norms, 2 * norms]


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_gradients_are_clipped_to_a_finite_value(value):
    refused, clipped = (estimate(zero_run(2, gradient_clipping=each), "cpu") for each in (value, 1e300))
    assert clipped.outcome == "ok"
    assert refused.provenance["reason"] == f"zero key 'gradient_clipping' must be a number from 0 on, not '{value}'"


@pytest.mark.parametrize("changes", [{"offload": "none"}, {"zero": {"offload_optimizer": {"super_offload": True}}}])
def test_seconds_of_offload_are_told_of_what_is_offloaded_whole(changes):
    run = Run(model=TINY, zero_stage=3, world_size=2, precision="bf16-master", offload="optimizer")
    rates = recorded_host_rates(H200)
    assert offload_seconds(run, rates) and offload_seconds(run.replace(**changes), rates) is None


def test_ranks_that_share_a_host_need_each_their_own_offloaded_states():
    run = Run(model=TINY, zero_stage=2, world_size=2, precision="bf16-master", offload="optimizer")
    weights = 2 * TINY.parameters * run.world_size
    assert bytes_of_states(run) == run.world_size * offloaded_bytes(run, pins=False) + weights


@pytest.mark.parametrize(
    ("fields", "asked"),
    [
        ({"engine": "ddp", "precision": "fp32", "world_size": 4}, [0]),
        ({"zero_stage": 3, "world_size": 4}, [0]),
        ({"zero_stage": 2, "world_size": 4}, [0, 1, 2, 3]),
    ],
)
def test_all_of_a_few_ranks_are_asked_where_they_differ(fields, asked):
    assert candidate_ranks(Run(**{"model": TINY, "precision": "bf16-master", **fields}), H200) == asked
    many = Run(model=TINY, zero_stage=2, world_size=64, precision="bf16-master")
    assert {0, 63} <= set(candidate_ranks(many, H200)) < set(range(64))
