"""Memory that CUDA libraries and kernels take for themselves: no tensor of the model, but inside `allocated`.

Each function returns bytes, in the order in which they are allocated; all of a kernel's are held together and freed
when it ends. Read in torch 2.11 to 2.13 sources and found again in the allocation traces of an H200.
"""

from __future__ import annotations

from labs_utils.allocator import round_up


def flash_backward(batch: int, seq_len: int, heads: int, kv_heads: int, head_dim: int) -> list[int]:
    """`softmax_d`, the fp32 `dq_accum`, and with grouped heads dk and dv for every query head.

    aten/native/transformers/cuda/flash_attn/flash_api.cpp, `mha_bwd`; flash-attn 2 is the same.
    """
    rows = round_up(seq_len, 128)
    padded_dim = round_up(head_dim, 32 if head_dim <= 128 else 64)
    accumulators = [4 * batch * heads * rows, 4 * batch * heads * rows * padded_dim]
    expanded = 2 * batch * seq_len * heads * round_up(head_dim, 8)
    return accumulators + ([expanded, expanded] if heads != kv_heads else [])


def efficient_backward(batch: int, seq_len: int, heads: int, head_dim: int) -> list[int]:
    """`delta` and the fp32 accumulator of dq, with a lock for every block of queries.

    aten/native/transformers/cuda/attention_backward.cu, `_efficient_attention_backward`.
    """
    return [4 * batch * heads * seq_len, batch * heads * (4 * round_up(seq_len, 64) * head_dim + 256)]


def softmax_backward(elements: int) -> list[int]:
    """The product of gradient and output, fp32. aten/native/cuda/SoftMax.cu, `softmax_backward_cuda_out`.

    >>> softmax_backward(elements=10)
    [40]
    """
    return [4 * elements]


def embedding_backward(tokens: int, vocab_size: int, hidden_size: int) -> list[int]:
    """Sorted token ids and fp32 partial sums, for more than 3072 tokens.

    aten/native/cuda/Embedding.cu, `embedding_dense_backward_cuda`, and EmbeddingBackwardKernel.cu.

    >>> embedding_backward(tokens=3072, vocab_size=32000, hidden_size=768)
    []
    """
    if tokens <= 3072:
        return []
    partial_segments = tokens // 10 + min(tokens, vocab_size)
    return [8 * tokens] * 3 + [8 * partial_segments, 4 * partial_segments * hidden_size]
