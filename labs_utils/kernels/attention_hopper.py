"""The same forward for Hopper GPUs (H100, H200), whose parts wait for each other as little as they can.

Three parts of one program run side by side (warp specialisation): one warp only orders tiles from memory (TMA), and two
groups of four warps compute, 64 queries each. While a group's tensor cores work on one tile, its other units turn the
scores of the next into powers: Shah et al., FlashAttention-3 (arXiv 2407.08608), sections 3.1 and 3.2. It is written in
Gluon, the part of Triton in which one says oneself where a tile lies and what waits for what.
"""

from __future__ import annotations

import math

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

ROWS = gl.constexpr(64)  # queries of one group of warps
TILE = gl.constexpr(128)  # keys, and values, of a tile
SLOTS = gl.constexpr(2)  # tiles of keys, and of values, that wait in shared memory


@gluon.jit
def order_tiles(K, V, keys, values, ready, free, sequence, head, tiles):
    """The producer: the last tile first, each as soon as a slot is free. A causal mask is about the last one only."""
    for i in range(tiles):
        slot = i % SLOTS
        place = [sequence, head, (tiles - 1 - i) * TILE, 0]
        for kind in gl.static_range(2):
            arrived = ready.index(2 * slot + kind)
            mbarrier.wait(free.index(2 * slot + kind), (i // SLOTS & 1) ^ 1)
            mbarrier.expect(arrived, K.block_type.nbytes)
            if kind == 0:
                tma.async_copy_global_to_shared(K, place, arrived, keys.index(slot))
            else:
                tma.async_copy_global_to_shared(V, place, arrived, values.index(slot))


@gluon.jit
def start_scores(q, keys, ready, i, layout: gl.constexpr):
    """Scores of tile `i`: only started, so that other work can be done until they are there."""
    mbarrier.wait(ready.index(2 * (i % SLOTS)), i // SLOTS & 1)
    k = keys.index(i % SLOTS).reshape([TILE, q.shape[1]]).permute([1, 0])
    return warpgroup_mma(q, k, gl.zeros([ROWS, TILE], gl.float32, layout), use_acc=False, is_async=True)


@gluon.jit
def start_result(powers, values, ready, i, result, WIDTH: gl.constexpr):
    """The product of tile `i`'s powers and values, added to the result: only started."""
    mbarrier.wait(ready.index(2 * (i % SLOTS) + 1), i // SLOTS & 1)
    return warpgroup_mma(powers, values.index(i % SLOTS).reshape([TILE, WIDTH]), result, is_async=True)


@gluon.jit
def online_softmax(scores, largest, total, scale, layout: gl.constexpr):
    """As in `attention_forward`, but that the result is rescaled later, when its product is there."""
    larger = gl.maximum(largest, gl.max(scores, 1) * scale)
    powers = gl.exp2(scores * scale - gl.expand_dims(larger, 1))
    shrink = gl.exp2(largest - larger)
    total = total * shrink + gl.sum(powers, 1)
    return gl.convert_layout(powers.to(gl.bfloat16), layout), larger, total, shrink


@gluon.jit
def first_tile(q, keys, ready, free, last_seen, tiles, scale, s_layout: gl.constexpr, p_layout: gl.constexpr):
    """Powers, maximum and sum of the only tile that needs a mask: keys after the last one that a query sees."""
    by_row: gl.constexpr = gl.SliceLayout(1, s_layout)
    scores = warpgroup_mma_wait(0, deps=(start_scores(q, keys, ready, 0, s_layout),))
    mbarrier.arrive(free.index(0), count=1)
    columns = (tiles - 1) * TILE + gl.arange(0, TILE, gl.SliceLayout(0, s_layout))
    scores = gl.where(gl.expand_dims(columns, 0) <= gl.expand_dims(last_seen, 1), scores, -float("inf"))
    largest = gl.full([ROWS], -float("inf"), gl.float32, by_row)
    return online_softmax(scores, largest, gl.zeros([ROWS], gl.float32, by_row), scale, p_layout)


@gluon.jit
def all_tiles(
    q, keys, values, ready, free, last_seen, tiles, scale,
    WIDTH: gl.constexpr, s_layout: gl.constexpr, o_layout: gl.constexpr,
):  # fmt: skip
    """Result, maximum and sum of 64 queries. The next tile's scores and this one's result are under way together."""
    p_layout: gl.constexpr = gl.DotOperandLayout(0, o_layout, 2)
    powers, largest, total, shrink = first_tile(q, keys, ready, free, last_seen, tiles, scale, s_layout, p_layout)
    result = warpgroup_mma_init(gl.zeros([ROWS, WIDTH], gl.float32, o_layout))
    for i in range(1, tiles):
        started = start_scores(q, keys, ready, i, s_layout)
        result = start_result(powers, values, ready, i - 1, result, WIDTH)
        scores = warpgroup_mma_wait(1, deps=(started,))
        mbarrier.arrive(free.index(2 * (i % SLOTS)), count=1)
        following, largest, total, shrink = online_softmax(scores, largest, total, scale, p_layout)
        done, powers = warpgroup_mma_wait(0, deps=(result, powers))
        mbarrier.arrive(free.index(2 * ((i - 1) % SLOTS) + 1), count=1)
        result = warpgroup_mma_init(done * gl.expand_dims(gl.convert_layout(shrink, gl.SliceLayout(1, o_layout)), 1))
        powers = following
    result = start_result(powers, values, ready, tiles - 1, result, WIDTH)
    return warpgroup_mma_wait(0, deps=(result,)), largest, total


@gluon.jit
def compute(
    q4, arrived, keys, values, ready, free, OUT, LSE, sequence, head, heads, start, tokens, tiles, scale,
    CAUSAL: gl.constexpr, WIDTH: gl.constexpr,
):  # fmt: skip
    """A consumer: 64 queries from their arrival to the result in memory."""
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, TILE, 16])
    o_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDTH, 16])
    rows = start + gl.arange(0, ROWS, gl.SliceLayout(1, s_layout))
    last_seen = gl.minimum(rows, tokens - 1) if CAUSAL else rows * 0 + (tokens - 1)
    mbarrier.wait(arrived, 0)
    q = q4.reshape([ROWS, WIDTH])
    result, largest, total = all_tiles(q, keys, values, ready, free, last_seen, tiles, scale, WIDTH, s_layout, o_layout)
    q.store((result / gl.expand_dims(gl.convert_layout(total, gl.SliceLayout(1, o_layout)), 1)).to(gl.bfloat16))
    fence_async_shared()
    tma.async_copy_shared_to_global(OUT, [sequence, head, start, 0], q4)
    gl.store(LSE + (sequence * heads + head).to(gl.int64) * tokens + rows, largest + gl.log2(total), mask=rows < tokens)
    tma.store_wait(0)


@gluon.jit
def barriers(count: gl.constexpr, arrivals: gl.constexpr):
    """So many barriers in shared memory, each open once `arrivals` have arrived."""
    made = gl.allocate_shared_memory(gl.int64, [count, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(count):
        mbarrier.init(made.index(i), count=arrivals)
    return made


@gluon.jit
def forward_kernel(
    Q, K, V, OUT, LSE, tokens, scale, heads, group,
    TOGETHER: gl.constexpr, CAUSAL: gl.constexpr, WIDTH: gl.constexpr,
):  # fmt: skip
    """128 queries. Those with most keys come first; `TOGETHER` heads at a time, whose tiles stay in the L2 cache."""
    blocks = gl.num_programs(0)
    program = gl.program_id(1) * blocks + gl.program_id(0)
    one = program // (TOGETHER * blocks) * TOGETHER + program % TOGETHER
    sequence, head = one // heads, one % heads
    start = (blocks - 1 - program % (TOGETHER * blocks) // TOGETHER) * 2 * ROWS
    tiles = gl.cdiv(gl.minimum(start + 2 * ROWS, tokens) if CAUSAL else tokens, TILE)
    queries = gl.allocate_shared_memory(gl.bfloat16, [2, 1, 1, ROWS, WIDTH], Q.layout)
    keys = gl.allocate_shared_memory(gl.bfloat16, [SLOTS, 1, 1, TILE, WIDTH], K.layout)
    values = gl.allocate_shared_memory(gl.bfloat16, [SLOTS, 1, 1, TILE, WIDTH], V.layout)
    ready, free = (
        barriers(2 * SLOTS, 1),
        barriers(2 * SLOTS, 2),
    )  # a slot is free when both groups of warps have read it
    arrived = barriers(1, 1).index(0)
    mbarrier.expect(arrived, 2 * Q.block_type.nbytes)
    tma.async_copy_global_to_shared(Q, [sequence, head, start, 0], arrived, queries.index(0))
    tma.async_copy_global_to_shared(Q, [sequence, head, start + ROWS, 0], arrived, queries.index(1))
    # fmt: off
    gl.warp_specialize([
        (compute, (queries.index(0), arrived, keys, values, ready, free, OUT, LSE, sequence, head, heads,
                   start, tokens, tiles, scale, CAUSAL, WIDTH)),
        (compute, (queries.index(1), arrived, keys, values, ready, free, OUT, LSE, sequence, head, heads,
                   start + ROWS, tokens, tiles, scale, CAUSAL, WIDTH)),
        (order_tiles, (K, V, keys, values, ready, free, sequence, head // group, tiles)),
    ], [4, 1], [240, 24])
    # fmt: on


def launch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """As `flash_attention.run_forward`, for contiguous bf16 tensors on a Hopper GPU with head_dim 64 or 128."""
    batch, heads, tokens, width = q.shape
    out, lse = torch.empty_like(q), torch.empty(q.shape[:3], device=q.device, dtype=torch.float32)
    tensors = (
        tiled(each, rows) for each, rows in ((q, ROWS.value), (k, TILE.value), (v, TILE.value), (out, ROWS.value))
    )
    together = next(each for each in (4, 2, 1) if batch * heads % each == 0)
    forward_kernel[triton.cdiv(tokens, 2 * ROWS.value), batch * heads](
        *tensors, lse, tokens, math.log2(math.e) / math.sqrt(width), heads, heads // k.shape[1],
        together, causal, width, num_warps=4,
    )  # fmt: skip
    return out, lse


def tiled(tensor: torch.Tensor, rows: int) -> TensorDescriptor:
    """What TMA needs to know to fetch or store tiles of so many rows; rows beyond the last token read as zero."""
    shape = [1, 1, rows, tensor.shape[-1]]
    return TensorDescriptor.from_tensor(tensor, shape, gl.NVMMASharedLayout.get_default_for(shape, gl.bfloat16))
