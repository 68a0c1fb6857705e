"""transformers' `LlamaRMSNorm` in sizes: `rms_norm(ops, x, weight)`, written in PyTorch's operators."""

from __future__ import annotations

from functools import partial

from labs_utils.memory_model.operators import Operators
from labs_utils.memory_model.tape import Tensor
from labs_utils.precision import FP32_BYTES


def rms_norm(ops: Operators, x: Tensor, weight: Tensor) -> Tensor:
    """Saves x in fp32, one fp32 number a token, and the normalised x in x's own type."""
    hidden = ops.cast(x, FP32_BYTES)
    variance = mean_square(ops, hidden)
    inverse_rms = reciprocal_root(ops, variance)
    normalised = multiply_broadcast(ops, hidden, inverse_rms)
    del hidden, inverse_rms
    return multiply_broadcast(ops, ops.cast(normalised, x.itemsize), weight)


def mean_square(ops: Operators, x: Tensor) -> Tensor:
    """The mean of the squares of each token's numbers; saves x."""

    def backward(gradient):
        return (ops.tape.new(elements, FP32_BYTES, "div"),)

    elements = x.elements
    square = ops.apply("pow", elements, FP32_BYTES, partial(power_backward, ops), (x,), (x,))
    return ops.apply("mean", ops.tokens, FP32_BYTES, backward, (square,))


def reciprocal_root(ops: Operators, variance: Tensor) -> Tensor:
    """1 / sqrt(variance + epsilon); saves its output."""
    shifted = ops.like(variance, "add")
    result = ops.like(variance, "rsqrt")
    del shifted
    return ops.tape.differentiable(result, "rsqrt", partial(power_backward, ops), (variance,), (result,))


def power_backward(ops: Operators, gradient: Tensor, saved: Tensor) -> tuple:
    """Of a square and of a reciprocal root: a power of what was saved, times a number, times the gradient."""
    steps = [ops.like(saved, name) for name in ("pow", "mul", "mul")]
    return (steps[-1],)


def multiply_broadcast(ops: Operators, x: Tensor, factor: Tensor) -> Tensor:
    """`x` times one number a row or a column; saves both."""
    itemsize, backward = max(x.itemsize, factor.itemsize), partial(broadcast_backward, ops)
    return ops.apply("mul", x.elements, itemsize, backward, (x, factor), (x, factor))


def broadcast_backward(ops: Operators, gradient: Tensor, x: Tensor, factor: Tensor) -> tuple:
    """The gradients of x and of the factor, which is summed over what it was broadcast to."""
    for_x = ops.like(gradient, "mul")
    product = ops.like(gradient, "mul")
    for_factor = ops.like(factor, "sum")
    del product
    return for_x, for_factor
