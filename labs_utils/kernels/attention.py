"""`flash_attention`: attention that never writes its scores to memory, forward and backward, for PyTorch."""

from __future__ import annotations

import math

import torch

from labs_utils.kernels import attention_backward as backward
from labs_utils.kernels import attention_forward as forward
from labs_utils.kernels.attention_tiles import FORWARD, KEYS, QUERIES, tile_sizes
from labs_utils.kernels.interpreter import triton

LOG2_E = math.log2(math.e)


def flash_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool = True) -> torch.Tensor:
    """softmax(q kᵀ / √head_dim) v, as SDPA's, of shape (batch, heads, tokens, head_dim).

    `k` and `v` may have fewer heads, each for a group of query heads. Memory beyond inputs and outputs: one fp32 number
    for each query and head. Runs on a GPU, and on a CPU in Triton's interpreter: there slowly, and in fp32 only.
    Raises ValueError if shapes or types don't fit.
    """
    check(q, k, v)
    return FlashAttention.apply(q.contiguous(), k.contiguous(), v.contiguous(), causal)


def check(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    """Raises ValueError with what doesn't fit."""
    if q.dim() != 4:
        raise ValueError(f"q has four dimensions, batch, heads, tokens and head_dim; this one is {tuple(q.shape)}.")
    batch, heads, _, width = q.shape
    if k.shape != v.shape or k.shape[0] != batch or k.shape[2:] != q.shape[2:] or heads % k.shape[1]:
        raise ValueError(f"q has the shape {tuple(q.shape)}: k {tuple(k.shape)} and v {tuple(v.shape)} don't fit it.")
    if width < 16 or width > 256 or width & (width - 1):
        raise ValueError(f"head_dim must be a power of two from 16 to 256, and is {width}.")
    if not q.dtype == k.dtype == v.dtype:
        raise ValueError(f"q, k and v must have one type, and have {q.dtype}, {k.dtype} and {v.dtype}.")
    if q.device.type == "cpu" and q.dtype != torch.float32:
        raise ValueError(
            f"On a CPU the kernel runs in Triton's interpreter, which is right in float32 only, not in {q.dtype}."
        )


class FlashAttention(torch.autograd.Function):
    """Keeps inputs, output and one number for each query: the log2 of the sum of its powers."""

    @staticmethod
    def forward(ctx, q, k, v, causal):
        out, lse = run_forward(q, k, v, causal)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.causal = causal
        return out

    @staticmethod
    def backward(ctx, grad):
        return *run_backward(*ctx.saved_tensors, grad.contiguous(), ctx.causal), None


def run_forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The output, and for each query log2 of the sum of 2^(its scores in base 2), fp32 (batch, heads, tokens)."""
    if suits_hopper(q):
        from labs_utils.kernels.attention_hopper import launch

        return launch(q, k, v, causal)
    batch, heads, tokens, width = q.shape
    out, lse = torch.empty_like(q), torch.empty(q.shape[:3], device=q.device, dtype=torch.float32)
    sizes = tile_sizes(q, FORWARD)
    forward.forward_kernel[triton.cdiv(tokens, sizes["BLOCK"]), batch * heads](
        q, k, v, out, lse, tokens, LOG2_E / math.sqrt(width), heads, heads // k.shape[1],
        CAUSAL=causal, WIDTH=width, **sizes,
    )  # fmt: skip
    return out, lse


def suits_hopper(q: torch.Tensor) -> bool:
    """Whether the kernel for Hopper takes it: bf16, head_dim 64 or 128, at least one tile of tokens."""
    return (
        q.device.type == "cuda"
        and torch.cuda.get_device_capability(q.device) == (9, 0)
        and q.dtype == torch.bfloat16
        and q.shape[-1] in (64, 128)
    )


def run_backward(q, k, v, out, lse, grad, causal):
    """The gradients of q, k and v, in their shapes."""
    batch, heads, tokens, width = q.shape
    root, group = 1 / math.sqrt(width), heads // k.shape[1]
    grad_q, grad_k, grad_v, dot = (torch.empty_like(each) for each in (q, k, v, lse))
    backward.output_dot_kernel[triton.cdiv(tokens, 64), batch * heads](out, grad, dot, tokens, BLOCK=64, WIDTH=width)
    common = {"CAUSAL": causal, "WIDTH": width}
    sizes = tile_sizes(q, KEYS, blocks=2)
    backward.keys_kernel[triton.cdiv(tokens, sizes["BLOCK"]), batch * k.shape[1]](
        q, k, v, grad, lse, dot, grad_k, grad_v, tokens, LOG2_E * root, root, group, **common, **sizes
    )
    sizes = tile_sizes(q, QUERIES, blocks=2)
    backward.queries_kernel[triton.cdiv(tokens, sizes["BLOCK"]), batch * heads](
        q, k, v, grad, lse, dot, grad_q, tokens, LOG2_E * root, root, heads, group, **common, **sizes
    )
    return grad_q, grad_k, grad_v
