"""The attention kernels in sizes: `ATTENTION[kernel](ops, run, q, k, v, mask)` gives (tokens, heads x head_dim).

A second tensor is the attention weights, or None: transformers' decoder layer refers to them until it ends.

transformers' integrations/sdpa_attention.py and `eager_attention_forward`; aten/native/transformers/attention.cpp.
"""

from __future__ import annotations

from functools import partial

from labs_utils.allocator import round_up
from labs_utils.memory_model import kernel_workspaces
from labs_utils.memory_model.operators import Operators
from labs_utils.memory_model.tape import Tensor
from labs_utils.precision import FP32_BYTES
from labs_utils.run import Run


def repeat_kv(ops: Operators, run: Run, x: Tensor, copied: bool = False) -> Tensor:
    """Keys or values once for every query head; saves nothing. A single head needs no copy, but may be `copied`."""

    def backward(gradient):
        return (ops.tape.new(before, itemsize, "sum"),)

    groups = run.model.num_attention_heads // run.model.num_key_value_heads
    before, itemsize = x.elements, x.itemsize
    if groups == 1:
        return x
    if run.model.num_key_value_heads > 1 or copied:
        return ops.apply("expand", before * groups, itemsize, backward, (x,))
    view = Tensor(before * groups, itemsize, x.storage)
    return ops.tape.differentiable(view, "expand", backward, (x,), ())


def scores(run: Run) -> int:
    """Elements of the attention matrix: batch x heads x seq_len x seq_len.

    >>> scores(Run(model="llama-3.1-8b", seq_len=4096))
    536870912
    """
    return run.micro_batch * run.model.num_attention_heads * run.seq_len**2


def fused_attention(kernel: str, ops: Operators, run: Run, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None):
    """One kernel that saves q, k, v, its output and one fp32 number a row; a mask costs it a copy in numbers too."""
    if mask is not None:
        k, v = repeat_kv(ops, run, k), ops.view(repeat_kv(ops, run, v))
        mask = ops.tape.new(mask.elements, ops.autocast_bytes or q.itemsize, "mask")
    before_cast = (q, k, v)
    if ops.autocast_bytes:
        k, q, v = (ops.cast(x, ops.autocast_bytes) for x in (k, q, v))
    ops.tape.put_in_order(*(x for x in (q, k, v) if not_in_order(run, x)))
    rows = round_up(run.seq_len, 32 if kernel == "efficient" and ops.workspace_bytes else 1)
    flops = 4 * q.elements * run.seq_len // (1 if run.padded else 2)  # without a mask, the causal half
    output = ops.kept_or(lambda: ops.like(q, kernel, flops=flops))
    logsumexp = ops.kept_or(
        lambda: ops.tape.new(run.micro_batch * run.model.num_attention_heads * rows, FP32_BYTES, kernel)
    )
    ops.tape.put_in_order(*(x for x in (output,) if not_in_order(run, x)))
    saves = tuple(x for x in (q, k, v, output, logsumexp, mask) if x is not None)
    del before_cast  # the callers hold them until the kernel has run
    return ops.tape.differentiable(output, kernel, partial(fused_backward, kernel, ops, run), (q, k, v), saves), None


def not_in_order(run: Run, x: Tensor) -> bool:
    """Whether heads lie between the tokens of x, as projections leave them; not keys repeated for a mask."""
    heads = x.elements // (run.tokens * run.model.head_dim)
    return run.seq_len > 1 and heads > 1


def fused_backward(kernel: str, ops: Operators, run: Run, gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, *saved):
    """The gradients of q, k and v, and what the kernel takes for itself."""
    flops = 10 * q.elements * run.seq_len // (1 if run.padded else 2)  # five products, where forward has two
    results = tuple(ops.like(x, f"{kernel}_backward", flops=flops * (x is q)) for x in (q, k, v))
    model, batch, seq_len = run.model, run.micro_batch, run.seq_len
    heads, kv_heads = model.num_attention_heads, k.elements // (ops.tokens * model.head_dim)
    if kernel == "efficient":
        ops.scratch(kernel_workspaces.efficient_backward(batch, seq_len, heads, model.head_dim), kernel)
    else:
        ops.scratch(kernel_workspaces.flash_backward(batch, seq_len, heads, kv_heads, model.head_dim), kernel)
    return results


def eager_attention(ops: Operators, run: Run, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Two matrix products and an fp32 softmax: saves q, expanded k and v, and the probabilities in both types."""
    keys, values = repeat_kv(ops, run, k), repeat_kv(ops, run, ops.view(v))
    in_order = lie_in_order(run) or (grouped(run) and run.model.num_key_value_heads > 1)  # copies do
    weights = matmul(ops, q, keys, scores(run), run.model.head_dim, (lie_in_order(run), in_order), transposed=True)
    weights = ops.scale(weights)
    weights = add_mask(ops, weights, mask)
    weights = ops.cast(softmax(ops, ops.cast(weights, FP32_BYTES)), q.itemsize)
    output = matmul(ops, weights, values, q.elements, run.seq_len, (True, in_order))
    return ops.contiguous(output), weights


def grouped(run: Run) -> bool:
    """Whether several query heads share a key/value head."""
    return run.model.num_attention_heads > run.model.num_key_value_heads


def lie_in_order(run: Run) -> bool:
    """Whether batch and heads can be read as one dimension without a copy: tokens lie between, if there are several."""
    return run.micro_batch == 1 or run.seq_len == 1


def matmul(ops: Operators, x: Tensor, y: Tensor, elements: int, inner: int, in_order, transposed=False) -> Tensor:
    """A batched product; saves x and y, cast by autocast and copied into order (batch and heads as one dimension).

    Each of its `elements` sums `inner` products. `in_order` says of x and of y whether they lie so already;
    `transposed` says that y is a transposed view, unless it has been copied.
    """
    if ops.autocast_bytes:
        x, y = ops.cast(x, ops.autocast_bytes), ops.cast(y, ops.autocast_bytes)
    x, y = (tensor if lies else ops.contiguous(tensor) for tensor, lies in zip((x, y), in_order, strict=True))
    ops.tape.put_in_order(*[y] * (transposed and in_order[1]))
    ops.take_workspace()
    flops = 2 * elements * inner
    return ops.apply("bmm", elements, x.itemsize, partial(matmul_backward, ops, flops), (x, y), (x, y), flops=flops)


def matmul_backward(ops: Operators, flops: int, gradient: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    ops.take_workspace()
    for_y = ops.like(y, "bmm", flops=flops)
    return ops.like(x, "bmm", flops=flops), for_y


def softmax(ops: Operators, x: Tensor) -> Tensor:
    """In fp32; saves its output."""
    output = ops.tape.new(x.elements, FP32_BYTES, "softmax")
    return ops.tape.differentiable(output, "softmax", partial(softmax_backward, ops), (x,), (output,))


def softmax_backward(ops: Operators, gradient: Tensor, output: Tensor) -> tuple[Tensor]:
    result = ops.like(output, "softmax_backward")
    ops.scratch(kernel_workspaces.softmax_backward(output.elements), "softmax_backward")
    return (result,)


def add_mask(ops: Operators, weights: Tensor, mask: Tensor) -> Tensor:
    """Scores plus a mask, in the larger of their types; saves nothing."""
    itemsize, before = max(weights.itemsize, mask.itemsize), weights.itemsize
    return ops.apply("add", weights.elements, itemsize, lambda g: (ops.cast(g, before),), (weights,))


def math_attention(ops: Operators, run: Run, q: Tensor, k: Tensor, v: Tensor, mask: None) -> tuple[Tensor, None]:
    """`_scaled_dot_product_attention_math`: everything in fp32; saves scaled q and k, v and the probabilities."""
    itemsize, v = ops.autocast_bytes or q.itemsize, ops.view(v)
    if ops.autocast_bytes:
        q, k, v = (ops.cast(x, itemsize) for x in (q, k, v))
    wide = [ops.cast(x, FP32_BYTES) for x in (q, k, v)]
    query = ops.scale(wide[0])
    bias = ops.tape.new(run.seq_len**2, FP32_BYTES, "mask")
    expanded, values = (repeat_kv(ops, run, x, copied=True) for x in wide[1:])
    in_order = lie_in_order(run) or grouped(run)
    with ops.no_autocast():
        sizes = (scores(run), run.model.head_dim)
        weights = matmul(ops, query, ops.scale(expanded), *sizes, (lie_in_order(run), in_order), transposed=True)
        weights = add_mask(ops, weights, bias)
        weights = softmax(ops, weights)
        returned = ops.cast(weights.detach(), itemsize)
        output = ops.cast(matmul(ops, weights, values, query.elements, run.seq_len, (True, in_order)), itemsize)
    del wide, query, expanded, values, bias, weights, returned
    return ops.contiguous(output), None


ATTENTION = {
    "flash": partial(fused_attention, "flash"),
    "efficient": partial(fused_attention, "efficient"),
    "cudnn": partial(fused_attention, "cudnn"),
    "math": math_attention,
    "eager": eager_attention,
}
