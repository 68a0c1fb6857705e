"""A process that tries one package: imports it, lets it do something tiny, and prints how; it fails as that fails.

python -m labs_utils.workers.package_trial triton
"""

from __future__ import annotations

import os
import sys


def main() -> None:
    answers_to = os.dup(1)
    os.dup2(2, 1)  # what libraries print is not an answer
    os.write(answers_to, TRIALS[sys.argv[1]](usable_device()).encode())


def usable_device() -> str:
    """ "cuda" where torch can use a GPU, else "cpu", with Triton's interpreter in place of its compiler."""
    import torch

    if torch.cuda.is_available():
        return "cuda"
    os.environ["TRITON_INTERPRET"] = "1"
    return "cpu"


def in_interpreter(device: str) -> str:
    """What is to be added about Triton's kernels where there is no GPU."""
    return "" if device == "cuda" else ", in Triton's interpreter: right, and slow"


def try_triton(device: str) -> str:
    """Adds two vectors."""
    import torch
    import triton
    import triton.language as tl

    @triton.jit
    def add(x, y, total, size: tl.constexpr):
        places = tl.arange(0, size)
        tl.store(total + places, tl.load(x + places) + tl.load(y + places))

    x = torch.arange(16.0, device=device)
    total = torch.empty_like(x)
    add[(1,)](x, x, total, 16)
    torch.testing.assert_close(total, x + x)
    return "ran a kernel" + in_interpreter(device)


def try_liger_kernel(device: str) -> str:
    """The loss of four tokens, against PyTorch's."""
    import torch
    from liger_kernel.transformers.cross_entropy import LigerCrossEntropyLoss

    logits, labels = torch.randn(4, 8, device=device), torch.arange(4, device=device)
    expected = torch.nn.functional.cross_entropy(logits, labels)
    torch.testing.assert_close(LigerCrossEntropyLoss()(logits.clone(), labels), expected)
    return "ran its loss" + in_interpreter(device)


def try_bitsandbytes(device: str) -> str:
    """To NF4 and back: the largest of each block comes back as it was."""
    import torch
    from bitsandbytes.functional import dequantize_4bit, quantize_4bit

    numbers = torch.linspace(-1, 1, 64, device=device)
    packed, state = quantize_4bit(numbers, blocksize=64, quant_type="nf4")
    assert dequantize_4bit(packed, state).flatten()[-1] == 1
    return "quantized to NF4 and back"


def try_deepspeed(device: str) -> str:
    """Reads a ZeRO configuration, without starting processes."""
    import deepspeed
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

    assert DeepSpeedZeroConfig(stage=3).stage == 3
    return f"imported, for {deepspeed.accelerator.get_accelerator().device_name()}"


def try_flash_attn(device: str) -> str:
    """Attention of 16 tokens in fp16, against PyTorch's."""
    import torch
    from flash_attn import flash_attn_func

    q, k, v = torch.randn(3, 1, 16, 2, 64, device=device, dtype=torch.float16)
    heads_first = [tensor.transpose(1, 2) for tensor in (q, k, v)]
    expected = torch.nn.functional.scaled_dot_product_attention(*heads_first).transpose(1, 2)
    torch.testing.assert_close(flash_attn_func(q, k, v), expected, atol=1e-2, rtol=1e-2)  # fp16 has 11 significant bits
    return "ran its kernel"


TRIALS = {
    "flash_attn": try_flash_attn,
    "liger_kernel": try_liger_kernel,
    "bitsandbytes": try_bitsandbytes,
    "deepspeed": try_deepspeed,
    "triton": try_triton,
}

if __name__ == "__main__":
    main()
