"""Bytes of the host's memory that offload takes for each rank, known before anything is allocated."""

from __future__ import annotations

from labs_utils.allocator import pinned_bytes
from labs_utils.memory_model.llama_step import SymbolicStep
from labs_utils.precision import OPTIMIZERS, precision_of
from labs_utils.run import Run
from labs_utils.zero_settings import holds_sums_apart, limits, pins_memory


def offloaded_bytes(run: Run, pins: bool = True) -> int:
    """Bytes that DeepSpeed 0.19 keeps on the host for one rank; `pins` is false where nothing is pinned, on a CPU.

    For each parameter of a rank: 4 of master weights, 4 of gradients, 2 of staging and 8 of Adam's moments; at stage 3
    the 2 are gradients in the model's type, and offloaded parameters are 2 more. In `bf16` each of the former is 2, the
    moments 4. Pinned memory comes in powers of two.
    """
    parameters = -(-run.model.parameters // run.world_size)
    numbers, moments = precision_of(run), OPTIMIZERS[run.optimizer].moments
    wide, narrow = numbers.updated.bytes, numbers.weight.bytes
    rounded = pinned_bytes if pins and pins_memory(run) else int
    of_moments = moments * numbers.moment.bytes * parameters
    if run.zero_stage < 3:
        largest = narrow * run.model.embedding_parameters
        accumulated = narrow * parameters if holds_sums_apart(run) else 0
        pinned = 2 * rounded(wide * parameters) + rounded(narrow * parameters) + rounded(largest)
        return pinned + accumulated + of_moments
    whole, rest = divmod(parameters, limits(run.zero).sub_group)
    group = (parameters - rest) // whole if whole else 0
    gradients = whole * rounded(wide * group) + rounded(wide * rest) + rounded(narrow * parameters)
    kept = (pinned_bytes if pins else int)(narrow * parameters) if run.offload == "all" else 0
    return wide * parameters + gradients + of_moments + kept


def left_pinned_bytes(run: Run) -> int:
    """Pinned memory that a GPU's rank keeps besides when parameters are offloaded: a block for each weight.

    In these they are partitioned, then laid end to end (stage3.py, `_move_to_flat_buffer`), and PyTorch's allocator of
    pinned memory gives nothing back.
    """
    if run.offload != "all" or not pins_memory(run, "offload_param"):
        return 0
    weights = SymbolicStep(run).parameters
    return sum(pinned_bytes(-(-weight.elements // run.world_size) * weight.itemsize) for weight in weights)
