"""Rotary position embedding in sizes: `rotate(ops, x, cos, sin)`, as transformers' `apply_rotary_pos_emb` does it."""

from __future__ import annotations

from labs_utils.memory_model.operators import Operators
from labs_utils.memory_model.tape import Tensor


def rotate(ops: Operators, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """`x * cos + rotate_half(x) * sin`; saves cos and sin only."""
    straight = times_table(ops, x, cos)
    return ops.add(straight, times_table(ops, rotate_half(ops, x), sin))


def times_table(ops: Operators, x: Tensor, table: Tensor) -> Tensor:
    """`x` times a table of cosines or sines, which needs no gradient."""

    def backward(gradient, table):
        return (ops.like(gradient, "mul"),)

    before = x.itemsize
    output = ops.apply("mul", x.elements, max(before, table.itemsize), backward, (x,), (table,))
    if output.node is not None:
        output.node.validate = lambda result: (ops.cast(result, before),)
    return output


def rotate_half(ops: Operators, x: Tensor) -> Tensor:
    """The second half of every row, negated, before the first half."""
    first, second = half(ops, x), half(ops, x)
    negative = ops.apply("neg", first.elements, x.itemsize, lambda g: (ops.like(g, "neg"),), (second,))
    return ops.apply("cat", x.elements, x.itemsize, halves, (negative, first))


def halves(gradient: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of two halves are views of the whole row's."""
    half = Tensor(gradient.elements // 2, gradient.itemsize, gradient.storage)
    return half, half


def half(ops: Operators, x: Tensor) -> Tensor:
    """Half of every row, as a view; its gradient is a whole row again."""

    def backward(gradient):
        return (ops.tape.new(2 * gradient.elements, gradient.itemsize, "slice_backward"),)

    view = Tensor(x.elements // 2, x.itemsize, x.storage)
    return ops.tape.differentiable(view, "slice", backward, (x,), ())
