"""Several ways to attend, each called alike: what Lab 06 compares."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from labs_utils.kernels.attention import flash_attention

Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, bool], torch.Tensor]


def naive_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool = True) -> torch.Tensor:
    """Attention as its formula says it: all scores, then their softmax, then the product with the values."""
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(later, -math.inf)
    return torch.softmax(scores, dim=-1) @ v


def sdpa(backend: SDPBackend, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    """PyTorch's own attention, by one of its kernels and by no other: RuntimeError where that one can't run."""
    with sdpa_kernel(backend):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)


def flash_attn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    """The package flash-attn, whose tensors are (batch, tokens, heads, head_dim). ImportError where it is missing."""
    from flash_attn import flash_attn_func

    return flash_attn_func(*(each.transpose(1, 2) for each in (q, k, v)), causal=causal).transpose(1, 2)


# By the name that figures and recordings have. `q`, `k` and `v` have the same number of heads.
WAYS: dict[str, Attend] = {
    "naive": naive_attention,
    "SDPA math": partial(sdpa, SDPBackend.MATH),
    "SDPA efficient": partial(sdpa, SDPBackend.EFFICIENT_ATTENTION),
    "SDPA flash": partial(sdpa, SDPBackend.FLASH_ATTENTION),
    "SDPA cuDNN": partial(sdpa, SDPBackend.CUDNN_ATTENTION),
    "flash-attn": flash_attn,
    "our Triton": flash_attention,
}
