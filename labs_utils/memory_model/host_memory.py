"""Bytes of the host's memory that a run takes, in closed form: known before anything is allocated.

`memory_model.offload` counts the same bytes tensor by tensor. These formulas show what the sum is made of, and answer
for runs that no symbolic step covers.
"""

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
    parameters, numbers = -(-run.model.parameters // run.world_size), precision_of(run)
    wide, narrow = numbers.updated.bytes, numbers.weight.bytes
    rounded = pinned_bytes if pins and pins_memory(run) else int
    moments = OPTIMIZERS[run.optimizer].moments * numbers.moment.bytes * parameters
    if run.zero_stage < 3:
        largest = narrow * run.model.embedding_parameters
        accumulated = narrow * parameters if holds_sums_apart(run) else 0
        pinned = 2 * rounded(wide * parameters) + rounded(narrow * parameters) + rounded(largest)
        return pinned + accumulated + moments
    whole, rest = divmod(parameters, limits(run.zero).sub_group)
    group = (parameters - rest) // whole if whole else 0
    gradients = whole * rounded(wide * group) + rounded(wide * rest) + rounded(narrow * parameters)
    kept = (pinned_bytes if pins else int)(narrow * parameters) if run.offload == "all" else 0
    return wide * parameters + gradients + moments + kept


def left_pinned_bytes(run: Run) -> int:
    """Pinned memory that a GPU's rank keeps besides when parameters are offloaded: a block for each weight.

    In these they are partitioned, then laid end to end (stage3.py, `_move_to_flat_buffer`), and PyTorch's allocator of
    pinned memory gives nothing back.
    """
    if run.offload != "all" or not pins_memory(run, "offload_param"):
        return 0
    weights = SymbolicStep(run).parameters
    return sum(pinned_bytes(-(-weight.elements // run.world_size) * weight.itemsize) for weight in weights)


def bytes_of_states(run: Run) -> int:
    """Bytes of all ranks' weights, gradients, master weights and moments where they share one memory, on a CPU.

    ZeRO keeps one copy of gradients, master weights and moments for all ranks, and at stage 3 of weights too.
    """
    parameters, ranks, numbers = run.model.parameters, run.world_size, precision_of(run)
    weights = numbers.weight.bytes * parameters * (1 if run.zero_stage == 3 else ranks)
    if run.offload != "none":
        return ranks * offloaded_bytes(run, pins=False) + (0 if run.offload == "all" else weights)
    master = numbers.updated if run.zero_stage else numbers.master
    moments = OPTIMIZERS[run.optimizer].moments * numbers.moment.bytes
    copies = 1 if run.zero_stage else ranks
    return weights + copies * (numbers.gradient.bytes + master.bytes + moments) * parameters
