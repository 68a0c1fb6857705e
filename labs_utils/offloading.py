"""What offload needs of the host: its Adam, and bytes of memory for each rank, known before anything is allocated."""

from __future__ import annotations

import os
import time
from pathlib import Path

from labs_utils.allocator import pinned_bytes
from labs_utils.run import Run
from labs_utils.symbolic_llama import WEIGHT_BYTES, SymbolicStep
from labs_utils.symbolic_zero3 import SUB_GROUP_ELEMENTS
from labs_utils.zero_config import holds_sums_apart, master_bytes

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
    """The first line of a compiler's words that says what is wrong, else the first of all."""
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


def offloaded_bytes(run: Run, pins: bool = True) -> int:
    """Bytes that DeepSpeed 0.19 keeps on the host for one rank; `pins` is false where nothing is pinned, on a CPU.

    For each parameter of a rank: 4 of master weights, 4 of gradients, 2 of staging and 8 of Adam's moments; at stage 3
    the 2 are gradients in the model's type, and offloaded parameters are 2 more. In `bf16` each of the former is 2, the
    moments 4. Pinned memory comes in powers of two.
    """
    parameters = -(-run.model.parameters // run.world_size)
    wide, narrow = master_bytes(run), WEIGHT_BYTES[run.precision]
    settings = run.zero.get("offload_optimizer", {})
    rounded = pinned_bytes if pins and settings.get("pin_memory", True) else int
    moments = 2 * wide * parameters * (run.optimizer != "sgd")
    if run.zero_stage < 3:
        largest = narrow * run.model.embedding_parameters
        accumulated = narrow * parameters if holds_sums_apart(run) else 0
        pinned = 2 * rounded(wide * parameters) + rounded(narrow * parameters) + rounded(largest)
        return pinned + accumulated + moments
    whole, rest = divmod(parameters, int(run.zero.get("sub_group_size", SUB_GROUP_ELEMENTS)))
    group = (parameters - rest) // whole if whole else 0
    gradients = whole * rounded(wide * group) + rounded(wide * rest) + rounded(narrow * parameters)
    kept = (pinned_bytes if pins else int)(narrow * parameters) if run.offload == "all" else 0
    return wide * parameters + gradients + moments + kept


def left_pinned_bytes(run: Run) -> int:
    """Pinned memory that a GPU's rank keeps besides when parameters are offloaded: a block for each weight.

    In these they are partitioned, then laid end to end (stage3.py, `_move_to_flat_buffer`), and PyTorch's allocator of
    pinned memory gives nothing back.
    """
    if run.offload != "all" or not run.zero.get("offload_param", {}).get("pin_memory", True):
        return 0
    weights = SymbolicStep(run).parameters
    return sum(pinned_bytes(-(-weight.elements // run.world_size) * weight.itemsize) for weight in weights)
