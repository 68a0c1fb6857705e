"""The Adam that works on the host for an offloaded optimizer: DeepSpeed's, once it has been compiled."""

from __future__ import annotations

import os
import time
from pathlib import Path

LONGEST_COMPILATION_SECONDS = 600


def why_no_cpu_adam() -> str | None:
    """Compile and load DeepSpeed's CPU Adam, about a minute once a machine; the reason why that fails, or None.

    It needs a C++ compiler, and ninja: from the system, or the Python package of that name.
    """
    try:
        import ninja

        os.environ["PATH"] = os.pathsep.join([ninja.BIN_DIR, os.environ.get("PATH", "")])
    except ImportError:
        pass
    try:
        from deepspeed.ops.op_builder import CPUAdamBuilder

        drop_old_locks()
        CPUAdamBuilder().load(verbose=False)
    except Exception as error:  # a compiler's failures are of every kind
        return f"{type(error).__name__}: {telling_line(str(error))[:200]}"
    return None


def telling_line(text: str) -> str:
    """The first line of a compiler's words that says what is wrong, else the first of all.

    >>> telling_line("[1/3] c++ -O3 cpu_adam.cpp\\n/bin/sh: 1: c++: not found\\nninja: stopped")
    '/bin/sh: 1: c++: not found'
    """
    lines = text.strip().splitlines() or [""]
    return next((line for line in lines if "not found" in line or "error:" in line.lower()), lines[0])


def drop_old_locks() -> None:
    """Remove what an interrupted compilation leaves behind, for which every later one would wait for ever.

    torch/utils/cpp_extension.py, `_jit_compile`: a file "lock" beside what is compiled.
    """
    from torch.utils.cpp_extension import get_default_build_root

    root = Path(os.environ.get("TORCH_EXTENSIONS_DIR") or get_default_build_root())
    for lock in [*root.glob("cpu_adam/lock"), *root.glob("*/cpu_adam/lock")]:
        if time.time() - lock.stat().st_mtime > LONGEST_COMPILATION_SECONDS:
            lock.unlink(missing_ok=True)


def compiled_cpu_adam(parameters, wide_moments: bool = True):
    """DeepSpeed's CPU Adam as the AdamW that PyTorch has by default; its operator must be there.

    Moments are fp32 or, without `wide_moments`, of the master weights' type.
    """
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    settings = {"lr": 1e-6, "weight_decay": 1e-2, "adamw_mode": True}
    return DeepSpeedCPUAdam(list(parameters), **settings, fp32_optimizer_states=wide_moments)
