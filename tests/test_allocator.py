"""The CUDA caching allocator in Python keeps the rules and constants of c10/cuda/CUDACachingAllocator.cpp."""

import random

import pytest

from labs_utils.allocator import CachingAllocator, OutOfMemory, pinned_bytes

KIB, MIB = 2**10, 2**20


@pytest.fixture
def allocator():
    return CachingAllocator()


@pytest.mark.parametrize("requested, block", [(0, 512), (1, 512), (512, 512), (513, 1024), (1000, 1024)])
def test_requests_are_rounded_up_to_512_bytes(allocator, requested, block):
    assert allocator.allocate(requested).size == allocator.allocated_bytes == block


@pytest.mark.parametrize(
    "requested, segment",
    [
        (1, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 1, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB),
        (10 * MIB + 1, 12 * MIB),
        (33 * MIB, 34 * MIB),
    ],
)
def test_segments_are_of_2_mib_or_20_mib_or_the_request_in_steps_of_2_mib(allocator, requested, segment):
    allocator.allocate(requested)
    assert allocator.reserved_bytes == segment


def test_small_requests_share_a_segment_down_to_the_last_512_bytes(allocator):
    for _ in range(2 * MIB // 512):
        allocator.allocate(512)
    assert allocator.allocated_bytes == allocator.reserved_bytes == 2 * MIB
    allocator.allocate(1)
    assert allocator.reserved_bytes == 4 * MIB


@pytest.mark.parametrize("left, given", [(MIB, 20 * MIB), (MIB + 512, 19 * MIB - 512)])
def test_a_large_block_is_split_only_if_more_than_1_mib_would_be_left(allocator, left, given):
    allocator.free(allocator.allocate(2 * MIB))
    assert allocator.allocate(20 * MIB - left).size == allocator.allocated_bytes == given
    assert allocator.reserved_bytes == 20 * MIB


def test_small_and_large_blocks_never_mix(allocator):
    allocator.free(allocator.allocate(5 * MIB))
    allocator.allocate(KIB)
    assert allocator.reserved_bytes == 22 * MIB


def test_the_smallest_free_block_that_fits_is_given(allocator):
    blocks = [allocator.allocate(size * MIB) for size in (16, 12, 14)]
    for block in blocks:
        allocator.free(block)
    assert allocator.allocate(12 * MIB - 1) is blocks[1]
    assert allocator.allocate(13 * MIB) is blocks[2]


def test_of_equal_free_blocks_the_lowest_is_given(allocator):
    blocks = [allocator.allocate(12 * MIB) for _ in range(3)]
    for block in reversed(blocks):
        allocator.free(block)
    assert allocator.allocate(12 * MIB) is blocks[0]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (0, 2, 1), (1, 0, 2)])
def test_free_neighbours_merge_whatever_the_order(allocator, order):
    blocks = [allocator.allocate(6 * MIB) for _ in range(3)]
    for index in order:
        allocator.free(blocks[index])
    assert allocator.allocate(20 * MIB).address == 0
    assert allocator.reserved_bytes == 20 * MIB


def test_a_block_between_live_ones_does_not_merge(allocator):
    blocks = [allocator.allocate(6 * MIB) for _ in range(3)]
    allocator.free(blocks[1])
    allocator.allocate(7 * MIB)
    assert allocator.reserved_bytes == 40 * MIB


def random_size(rng):
    return rng.choice([rng.randint(0, 4 * KIB), rng.randint(1, 2 * MIB), rng.randint(1, 40 * MIB)])


def ends(block):
    return block.address, block.address + block.size


def check_live(allocator, live):
    """Live blocks don't overlap, and they are what is counted as allocated."""
    spans = sorted(map(ends, live))
    assert all(end <= start for (_, end), (start, _) in zip(spans, spans[1:], strict=False))
    assert allocator.allocated_bytes == sum(block.size for block in live) <= allocator.reserved_bytes


@pytest.mark.parametrize("seed", range(5))
def test_any_order_of_allocating_and_freeing_keeps_the_books(allocator, seed):
    rng, live, segments = random.Random(seed), [], 0
    for _ in range(1000):
        if live and rng.random() < 0.48:
            allocator.free(live.pop(rng.randrange(len(live))))
        else:
            reserved_before, requested = allocator.reserved_bytes, random_size(rng)
            live.append(allocator.allocate(requested))
            segments += allocator.reserved_bytes > reserved_before
            assert live[-1].size >= requested and live[-1].size % 512 == 0
        check_live(allocator, live)
    for block in live:
        allocator.free(block)
    assert allocator.allocated_bytes == 0
    left = [block for pool in allocator._free.values() for *_, block in pool]
    assert len(left) == segments > 1 and sum(block.size for block in left) == allocator.reserved_bytes


def test_a_limit_is_kept_by_giving_back_what_nothing_uses():
    allocator = CachingAllocator(limit_bytes=40 * MIB)
    allocator.free(allocator.allocate(30 * MIB))
    allocator.allocate(32 * MIB)
    assert allocator.reserved_bytes == 32 * MIB


def test_a_limit_is_met_where_what_is_free_lies_in_pieces():
    allocator = CachingAllocator(limit_bytes=60 * MIB)
    allocator.free(allocator.allocate(40 * MIB))
    allocator.allocate(12 * MIB)  # cut from the free segment, which can't be given back any more
    with pytest.raises(OutOfMemory):
        allocator.allocate(40 * MIB)


@pytest.mark.parametrize("size, block", [(1, 1), (2, 2), (3, 4), (4096, 4096), (4097, 8192)])
def test_pinned_memory_comes_in_powers_of_two(size, block):
    assert pinned_bytes(size) == block
