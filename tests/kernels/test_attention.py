"""Our kernels against PyTorch's attention: in Triton's interpreter in fp32, on a GPU in 16 bits as well."""

import subprocess
import sys

import pytest
import torch

if sys.platform != "linux":
    pytest.skip("Triton runs on Linux", allow_module_level=True)

from labs_utils.kernels import flash_attention
from labs_utils.kernels.attention import run_forward
from labs_utils.kernels.attention_ways import naive_attention

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SHAPES = {  # batch, query heads, key heads, tokens, head_dim
    "one token": (1, 1, 1, 1, 16),
    "no multiple of a tile": (2, 2, 2, 77, 16),
    "two tiles and a token": (1, 2, 1, 129, 32),
    "whole tiles, grouped heads": (2, 6, 2, 128, 16),
}


def tensors(batch, heads, kv_heads, tokens, width, dtype=torch.float32, large=1.0):
    """Queries, keys, values and the output's gradient; `large` times larger logits."""
    generator = torch.Generator().manual_seed(tokens + heads)
    sizes = [(batch, each, tokens, width) for each in (heads, kv_heads, kv_heads, heads)]
    q, k, v, gradient = (torch.randn(size, generator=generator).to(DEVICE, dtype) for size in sizes)
    return [(q * large).requires_grad_(), k.requires_grad_(), v.requires_grad_()], gradient


def with_gradients(attend, inputs, gradient, causal):
    result = attend(*inputs, causal)
    return [result, *torch.autograd.grad(result, inputs, gradient)]


def by_formula(q, k, v, causal):
    group = q.shape[1] // k.shape[1]
    return naive_attention(q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1), causal)


def exactly(inputs, gradient, causal):
    """By the formula, in fp64."""
    doubled = [each.detach().double().requires_grad_() for each in inputs]
    return with_gradients(by_formula, doubled, gradient.double(), causal)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_it_is_attention_forward_and_backward(shape, causal):
    inputs, gradient = tensors(*shape)
    for ours, true in zip(
        with_gradients(flash_attention, inputs, gradient, causal), exactly(inputs, gradient, causal), strict=True
    ):
        torch.testing.assert_close(ours.double(), true, atol=5e-6, rtol=1e-4)


@pytest.mark.skipif(DEVICE == "cuda", reason="there Triton compiles")
def test_a_triton_that_was_imported_too_early_is_a_sentence():
    program = (
        "import os; os.environ.pop('TRITON_INTERPRET', 0); import triton, labs_utils.kernels as k; k.flash_attention"
    )
    failed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "ImportError: Triton was imported before" in failed.stderr and "TRITON_INTERPRET=1" in failed.stderr


def test_large_logits_overflow_nothing():
    inputs, gradient = tensors(1, 1, 1, 96, 16, large=1000.0)
    ours, true = flash_attention(*inputs, True), exactly(inputs, gradient, True)[0]
    torch.testing.assert_close(ours.double(), true, atol=1e-4, rtol=1e-3)


def test_it_keeps_the_log_of_each_sum():
    (q, k, v), _ = tensors(1, 2, 2, 80, 16)
    scores = (q @ k.transpose(-1, -2) / 4).masked_fill(torch.ones(80, 80, device=DEVICE).triu(1).bool(), -torch.inf)
    _, lse = run_forward(q.detach(), k.detach(), v.detach(), True)
    torch.testing.assert_close(lse * torch.log(torch.tensor(2.0)), scores.logsumexp(-1), atol=1e-5, rtol=1e-5)


@pytest.mark.skipif(DEVICE == "cpu", reason="16-bit products are wrong in Triton's interpreter")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize("tokens", [1, 77, 1000, 4097])
def test_it_is_as_exact_as_16_bits_allow_on_a_gpu(dtype, width, tokens):
    inputs, gradient = tensors(1, 4, 2, tokens, width, dtype)
    for causal in (True, False):
        everything = with_gradients(flash_attention, inputs, gradient, causal), exactly(inputs, gradient, causal)
        for ours, true in zip(*everything, strict=True):
            torch.testing.assert_close(ours.double(), true, atol=0.03, rtol=0.02)


@pytest.mark.parametrize(
    ("shapes", "dtype", "said"),
    [
        (((1, 4, 8, 16), (1, 3, 8, 16)), torch.float32, r"\(1, 3, 8, 16\) don't fit"),
        (((1, 4, 8, 24), (1, 4, 8, 24)), torch.float32, "power of two from 16 to 256, and is 24"),
        (((4, 8, 16), (4, 8, 16)), torch.float32, r"four dimensions.*\(4, 8, 16\)"),
        pytest.param(((1, 4, 8, 16), (1, 4, 8, 16)), torch.bfloat16, "float32 only, not in torch.bfloat16",
                     marks=pytest.mark.skipif(DEVICE == "cuda", reason="a GPU computes in 16 bits")),
    ],
)  # fmt: skip
def test_what_doesnt_fit_is_said(shapes, dtype, said):
    q, k = (torch.zeros(shape, device=DEVICE, dtype=dtype) for shape in shapes)
    with pytest.raises(ValueError, match=said):
        flash_attention(q, k, k)
