"""FlashAttention's backward in Triton: scores are computed again from the log-sum-exp that forward left.

FlashAttention-2 (arXiv 2307.08691), algorithm 2, in two kernels, so that no program adds to what another one adds to:
one gives a block of keys its gradients and goes through the queries, the other one the other way round.
"""

from __future__ import annotations

from labs_utils.kernels.attention_forward import load, shared_head
from labs_utils.kernels.interpreter import tl, triton


@triton.jit
def output_dot_kernel(OUT, GRAD, DOT, tokens, BLOCK: tl.constexpr, WIDTH: tl.constexpr):
    """For each query the product of its output and the output's gradient: the D of algorithm 2, line 4."""
    head = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    at = head * tokens * WIDTH + rows[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    inside = rows < tokens
    product = load(OUT + at, inside[:, None], True).to(tl.float32) * load(GRAD + at, inside[:, None], True)
    tl.store(DOT + head * tokens + rows, tl.sum(product, 1), mask=inside)


@triton.jit
def keys_from_queries(
    grad_k, grad_v, k, v, columns, Q, GRAD, LSE, DOT, first, last, tokens, scale,
    MASKED: tl.constexpr, CAUSAL: tl.constexpr, TILE: tl.constexpr, WIDTH: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """What the queries from `first` to `last` add to the gradients of a block of keys and values."""
    for start in tl.range(first, last, TILE, num_stages=STAGES):
        rows = start + tl.arange(0, TILE)
        at = rows[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
        inside = rows < tokens
        q = load(Q + at, inside[:, None], MASKED)
        powers = tl.exp2(tl.dot(k, q.T, input_precision="tf32x3") * scale - load(LSE + rows, inside, MASKED)[None, :])
        if MASKED:
            seen = inside[None, :]
            if CAUSAL:
                seen = seen & (columns[:, None] <= rows[None, :])
            powers = tl.where(seen, powers, 0.0)
        grad = load(GRAD + at, inside[:, None], MASKED)
        grad_v = tl.dot(powers.to(grad.dtype), grad, grad_v, input_precision="tf32x3")
        dot = load(DOT + rows, inside, MASKED)
        grad_scores = powers * (tl.dot(v, grad.T, input_precision="tf32x3") - dot[None, :])
        grad_k = tl.dot(grad_scores.to(q.dtype), q, grad_k, input_precision="tf32x3")
    return grad_k, grad_v


@triton.jit
def keys_kernel(
    Q, K, V, GRAD, LSE, DOT, GRAD_K, GRAD_V, tokens, scale, root, group,
    CAUSAL: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr, WIDTH: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The gradients of one block of keys and values of one key head: all queries of its group of heads add to them."""
    head = tl.program_id(1).to(tl.int64)
    start = tl.program_id(0) * BLOCK
    columns = start + tl.arange(0, BLOCK)
    inside = columns[:, None] < tokens
    at = head * tokens * WIDTH + columns[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    k, v = load(K + at, inside, True), load(V + at, inside, True)
    grad_k, grad_v = tl.zeros([BLOCK, WIDTH], tl.float32), tl.zeros([BLOCK, WIDTH], tl.float32)
    first = start + BLOCK if CAUSAL else 0  # from here on no tile needs the causal mask
    last = tl.maximum(tokens // TILE * TILE, first)
    # fmt: off
    for each in range(head * group * tokens, (head + 1) * group * tokens, tokens):
        q, grad, lse, dot = Q + each * WIDTH, GRAD + each * WIDTH, LSE + each, DOT + each
        if CAUSAL:
            grad_k, grad_v = keys_from_queries(
                grad_k, grad_v, k, v, columns, q, grad, lse, dot, start, first, tokens, scale,
                True, True, TILE, WIDTH, 1)
        grad_k, grad_v = keys_from_queries(
            grad_k, grad_v, k, v, columns, q, grad, lse, dot, first, last, tokens, scale,
            False, False, TILE, WIDTH, STAGES)
        grad_k, grad_v = keys_from_queries(
            grad_k, grad_v, k, v, columns, q, grad, lse, dot, last, tokens, tokens, scale,
            True, False, TILE, WIDTH, 1)
    # fmt: on
    tl.store(GRAD_K + at, (grad_k * root).to(k.dtype), mask=inside)
    tl.store(GRAD_V + at, grad_v.to(v.dtype), mask=inside)


@triton.jit
def queries_from_keys(
    grad_q, q, grad, lse, dot, rows, K, V, first, last, tokens, scale,
    MASKED: tl.constexpr, CAUSAL: tl.constexpr, TILE: tl.constexpr, WIDTH: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """What the keys from `first` to `last` add to the gradient of a block of queries."""
    for start in tl.range(first, last, TILE, num_stages=STAGES):
        columns = start + tl.arange(0, TILE)
        at = columns[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
        inside = (columns < tokens)[:, None]
        k, v = load(K + at, inside, MASKED), load(V + at, inside, MASKED)
        powers = tl.exp2(tl.dot(q, k.T, input_precision="tf32x3") * scale - lse[:, None])
        if MASKED:
            seen = columns[None, :] < tokens
            if CAUSAL:
                seen = seen & (columns[None, :] <= rows[:, None])
            powers = tl.where(seen, powers, 0.0)
        grad_scores = powers * (tl.dot(grad, v.T, input_precision="tf32x3") - dot[:, None])
        grad_q = tl.dot(grad_scores.to(k.dtype), k, grad_q, input_precision="tf32x3")
    return grad_q


@triton.jit
def queries_kernel(
    Q, K, V, GRAD, LSE, DOT, GRAD_Q, tokens, scale, root, heads, group,
    CAUSAL: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr, WIDTH: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The gradient of one block of queries of one head."""
    head = tl.program_id(1).to(tl.int64)
    start = (tl.num_programs(0) - 1 - tl.program_id(0)) * BLOCK
    rows = start + tl.arange(0, BLOCK)
    at = head * tokens * WIDTH + rows[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    inside = rows < tokens
    q, grad = load(Q + at, inside[:, None], True), load(GRAD + at, inside[:, None], True)
    lse, dot = load(LSE + head * tokens + rows, inside, True), load(DOT + head * tokens + rows, inside, True)
    shared = shared_head(head, heads, group) * tokens * WIDTH
    middle = start if CAUSAL else tokens // TILE * TILE
    end = tl.minimum(start + BLOCK, tokens) if CAUSAL else tokens
    grad_q = tl.zeros([BLOCK, WIDTH], tl.float32)
    # fmt: off
    grad_q = queries_from_keys(
        grad_q, q, grad, lse, dot, rows, K + shared, V + shared, 0, middle, tokens, scale,
        False, CAUSAL, TILE, WIDTH, STAGES)
    grad_q = queries_from_keys(
        grad_q, q, grad, lse, dot, rows, K + shared, V + shared, middle, end, tokens, scale,
        True, CAUSAL, TILE, WIDTH, 1)
    # fmt: on
    tl.store(GRAD_Q + at, (grad_q * root).to(q.dtype), mask=inside[:, None])
