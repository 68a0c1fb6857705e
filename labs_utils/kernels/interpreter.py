"""Triton where there is no GPU: its interpreter runs a kernel's programs one after another, with numpy."""

from __future__ import annotations

import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read where `triton.jit` decorates, in Triton's own modules too

try:
    import triton
    import triton.language as tl
except ImportError as error:
    raise ImportError("Triton isn't installed: `pip install triton`, on Linux or in WSL2.") from error

if not torch.cuda.is_available() and isinstance(tl.zeros, triton.JITFunction):
    raise ImportError(
        "Triton was imported before this course's kernels, and so compiles for a GPU, which isn't here. "
        "Start Python again (in a notebook: restart the kernel) with TRITON_INTERPRET=1 in its environment."
    )

__all__ = ["tl", "triton"]
