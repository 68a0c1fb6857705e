"""Which symbolic step stands for a rank of DDP or DeepSpeed, which ranks to ask, and which runs none stands for."""

from __future__ import annotations

from collections import Counter
from difflib import get_close_matches

from labs_utils.device import Device
from labs_utils.run import Run
from labs_utils.symbolic_llama import SymbolicStep
from labs_utils.symbolic_offload import Offload3Step, OffloadStep, why_not_offloaded
from labs_utils.symbolic_zero import NORM_BYTES, AllReduceStep, DdpStep, MasterStep, ZeroStep
from labs_utils.symbolic_zero3 import Zero3Step
from labs_utils.zero_config import OFFLOADS, SIZES

COVERED = sorted({"overlap_comm", "gradient_clipping", *OFFLOADS, *SIZES})
ALL_RANKS = 4


def why_not_covered(run: Run) -> str | None:
    """Why these steps don't cover a run of several ranks; None if they do."""
    if run.offload != "none" and (reason := why_not_offloaded(run)):
        return reason
    if run.zero_stage == 3 and "liger" in (run.layer_kernels, run.loss_kernel):
        return "Liger's kernels at ZeRO stage 3 aren't estimated yet; 'torch' is"
    reasons = (why_not_key(key, run.offload != "none") for key in run.zero)
    return next(filter(None, reasons), None)


def why_not_key(key: str, offloads: bool) -> str | None:
    """Why a key of a run's `zero` isn't covered."""
    if key in COVERED or (key == "data_types" and offloads):
        return None
    meant = get_close_matches(key, COVERED, 1)
    known = f"is {meant[0]!r} meant?" if meant else f"{', '.join(COVERED)} are"
    return f"zero key {key!r} isn't estimated yet; {known}"


def distributed_step(run: Run, device: Device, rank: int = 0) -> SymbolicStep:
    """The run's step on one of several ranks."""
    if run.engine == "ddp":
        return DdpStep(run, device)
    if run.zero_stage == 0:
        return (MasterStep if run.precision.endswith("-master") else AllReduceStep)(run, device)
    if run.zero_stage == 3:
        return (Zero3Step if run.offload == "none" else Offload3Step)(run, device)
    return (ZeroStep if run.offload == "none" else OffloadStep)(run, device, rank)


def telling_ranks(run: Run, device: Device) -> list[int]:
    """Ranks one of which has the largest peak: all of a few; of many, the ends and those that own the most.

    At stages 1 and 2 what differs is a rank's owned gradients, the fp64 norm of the largest, and when in backward they
    come. The last is left out: of tiny models' many ranks one that isn't asked may have 1.5 % more.
    """
    if run.engine == "ddp" or run.zero_stage in (0, 3):
        return [0]
    if run.world_size <= ALL_RANKS:
        return list(range(run.world_size))
    step = ZeroStep(run, device)
    owned, with_norm = Counter(), Counter()
    for parameter in step.parameters:
        for rank, elements in step.spans[id(parameter)]:
            owned[rank] += parameter.elements * step.itemsize
            with_norm[rank] = max(with_norm[rank], elements * NORM_BYTES)
    with_norm.update(owned)
    most = [rank for sizes in (owned, with_norm) for rank, _ in sizes.most_common(3)]
    return sorted({0, *most, run.world_size - 1})
