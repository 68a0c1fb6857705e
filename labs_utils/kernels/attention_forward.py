"""FlashAttention's forward in Triton: each program takes a block of queries through all keys and values, tile by tile.

Dao et al., FlashAttention (arXiv 2205.14135), algorithm 1, with the loops in the order of FlashAttention-2
(arXiv 2307.08691), algorithm 1. Scores are kept in base 2, since a GPU has an instruction for 2^x:
e^(scale * x) = 2^(scale * log2(e) * x).
"""

from __future__ import annotations

from labs_utils.kernels.interpreter import tl, triton


@triton.jit
def online_softmax(scores, largest, total, result, scale):
    """One tile's powers; and the running maximum, sum and result, the last two rescaled to the new maximum."""
    larger = tl.maximum(largest, tl.max(scores, 1) * scale)
    powers = tl.exp2(scores * scale - larger[:, None])
    shrink = tl.exp2(largest - larger)
    return powers, larger, total * shrink + tl.sum(powers, 1), result * shrink[:, None]


@triton.jit
def load(pointers, inside, MASKED: tl.constexpr):
    """What the pointers point to, zero outside; where nothing is outside, without asking."""
    if MASKED:
        return tl.load(pointers, mask=inside, other=0.0)
    else:
        return tl.load(pointers)


@triton.jit
def shared_head(head, heads, group):
    """The head of keys and values that a head of queries reads, both counted over all sequences."""
    return head // heads * (heads // group) + head % heads // group


@triton.jit
def attend(
    q, keys, values, largest, total, result, rows, first, last, tokens, scale,
    MASKED: tl.constexpr, CAUSAL: tl.constexpr, TILE: tl.constexpr, WIDTH: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The tiles of keys from `first` to `last`. Masked ones look at each position; most tiles need no mask."""
    for start in tl.range(first, last, TILE, num_stages=STAGES):
        columns = start + tl.arange(0, TILE)
        at = columns[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
        inside = (columns < tokens)[:, None]
        scores = tl.dot(q, load(keys + at, inside, MASKED).T, input_precision="tf32x3")
        if MASKED:
            seen = columns[None, :] < tokens
            if CAUSAL:
                seen = seen & (columns[None, :] <= rows[:, None])
            scores = tl.where(seen, scores, -float("inf"))
        powers, largest, total, result = online_softmax(scores, largest, total, result, scale)
        v = load(values + at, inside, MASKED)
        result = tl.dot(powers.to(v.dtype), v, result, input_precision="tf32x3")
    return largest, total, result


@triton.jit
def forward_kernel(
    Q, K, V, OUT, LSE, tokens, scale, heads, group,
    CAUSAL: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr, WIDTH: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """One block of queries of one head. Blocks with most keys come first, so that none is left over at the end."""
    head = tl.program_id(1).to(tl.int64)  # of all sequences
    start = (tl.num_programs(0) - 1 - tl.program_id(0)) * BLOCK
    rows = start + tl.arange(0, BLOCK)
    inside = rows < tokens
    at = head * tokens * WIDTH + rows[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    q = load(Q + at, inside[:, None], True)
    shared = shared_head(head, heads, group) * tokens * WIDTH
    largest, total = tl.full([BLOCK], -float("inf"), tl.float32), tl.zeros([BLOCK], tl.float32)
    result = tl.zeros([BLOCK, WIDTH], tl.float32)
    middle = start if CAUSAL else tokens // TILE * TILE  # up to here no tile needs a mask
    end = tl.minimum(start + BLOCK, tokens) if CAUSAL else tokens
    # fmt: off
    largest, total, result = attend(
        q, K + shared, V + shared, largest, total, result, rows, 0, middle, tokens, scale,
        False, CAUSAL, TILE, WIDTH, STAGES)
    largest, total, result = attend(
        q, K + shared, V + shared, largest, total, result, rows, middle, end, tokens, scale,
        True, CAUSAL, TILE, WIDTH, 1)
    # fmt: on
    tl.store(OUT + at, (result / total[:, None]).to(q.dtype), mask=inside[:, None])
    tl.store(LSE + head * tokens + rows, largest + tl.log2(total), mask=inside)
