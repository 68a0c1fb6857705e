"""Liger's kernels in sizes (liger-kernel 0.8.5, ops/): they save less, and write gradients over what they read."""

from __future__ import annotations

from labs_utils.device import Device
from labs_utils.memory_model.operators import Operators
from labs_utils.memory_model.tape import Tensor
from labs_utils.precision import FP32_BYTES


def rms_norm(ops: Operators, x: Tensor, weight: Tensor, device: Device) -> Tensor:
    """ops/rms_norm.py: saves x and one fp32 number a token; sums the weight's gradient once a multiprocessor."""

    def backward(gradient, x, inverse_rms, weight):
        partial_sums = ops.tape.new(device.multiprocessors * weight.elements, FP32_BYTES, "liger_rms_norm")
        total = ops.tape.new(weight.elements, FP32_BYTES, "sum")
        for_weight = ops.cast(total, weight.itemsize)
        del partial_sums
        return gradient, for_weight

    output = ops.like(x, "liger_rms_norm")
    inverse_rms = ops.tape.new(ops.tokens, FP32_BYTES, "liger_rms_norm")
    return ops.tape.differentiable(output, "liger_rms_norm", backward, (x, weight), (x, inverse_rms, weight))


def silu_mul(ops: Operators, gate: Tensor, up: Tensor) -> Tensor:
    """ops/swiglu.py: saves both inputs, and writes their gradients over them."""
    return ops.apply(
        "liger_silu_mul", gate.elements, gate.itemsize, lambda g, gate, up: (gate, up), (gate, up), (gate, up)
    )


def linear_cross_entropy(ops: Operators, hidden: Tensor, head: Tensor, labels: Tensor) -> Tensor:
    """ops/fused_linear_cross_entropy.py: makes the gradients in forward, one chunk of logits at a time."""
    hidden_size = hidden.elements // ops.tokens
    vocab_size = head.elements // hidden_size
    for_hidden, for_head = ops.like(hidden, "liger_loss"), ops.like(head, "liger_loss")
    losses, valid = ops.tape.new(ops.tokens, FP32_BYTES, "liger_loss"), ops.tape.new(ops.tokens, 1, "liger_loss")
    chunk = chunk_tokens(ops.tokens, vocab_size, hidden_size)
    itemsize = ops.autocast_bytes or hidden.itemsize
    casts = autocast_copies(ops, head, chunk * hidden_size, several=chunk < ops.tokens)
    logits = ops.tape.new(chunk * vocab_size, itemsize, "liger_loss", "logits")
    del casts, logits, losses, valid
    moved_bytes = head_bytes(ops, head) * -(-ops.tokens // chunk)
    flops = 6 * ops.tokens * head.elements  # the three products of a linear layer, all in forward
    ops.tape.note("liger_loss", moved_bytes, itemsize, flops)
    backward = lambda g, *gradients: gradients  # noqa: E731
    inputs = (hidden, head)
    return ops.apply("liger_loss", 1, FP32_BYTES, backward, inputs, (for_hidden, for_head))


def head_bytes(ops: Operators, head: Tensor) -> int:
    """What a chunk reads and writes of the head: two products read it or a cast of it, and its gradient grows."""
    read = 2 * (ops.autocast_bytes or head.itemsize)
    cast = 2 * (head.itemsize + ops.autocast_bytes) if ops.autocast_bytes else 0
    return (read + cast + 2 * head.itemsize) * head.elements


def autocast_copies(ops: Operators, head: Tensor, chunk_elements: int, several: bool) -> list[Tensor]:
    """What autocast casts for a chunk: the head and the tokens; the chunk before has left a copy of the head."""
    if not ops.autocast_bytes:
        return []
    sizes = [head.elements] * (1 + several) + [chunk_elements]
    return [ops.tape.new(size, ops.autocast_bytes, "to") for size in sizes]


def chunk_tokens(tokens: int, vocab_size: int, hidden_size: int) -> int:
    """Tokens whose logits are held at a time: about tokens x hidden_size / vocab_size, a power of two.

    >>> chunk_tokens(8192, vocab_size=128256, hidden_size=4096)
    256
    """
    chunks = -(-vocab_size // hidden_size)
    return min(tokens, 1 << (-(-tokens // chunks) - 1).bit_length())
