"""Which symbolic step stands for a rank of DDP or DeepSpeed, which ranks to ask, and which runs none stands for."""

from __future__ import annotations

from collections import Counter

from labs_utils.device import Device
from labs_utils.memory_model.data_parallel import NORM_BYTES, AllReduceStep, DdpStep, MasterStep, ZeroStep
from labs_utils.memory_model.llama_step import SymbolicStep
from labs_utils.memory_model.offload import Offload3Step, OffloadStep
from labs_utils.memory_model.zero3 import Zero3Step
from labs_utils.run import Run

FEW_RANKS = 4


def distributed_step(run: Run, device: Device, rank: int = 0) -> SymbolicStep:
    """The run's step on one of several ranks."""
    if run.engine == "ddp":
        return DdpStep(run, device)
    if run.zero_stage == 0:
        return (MasterStep if run.precision.endswith("-master") else AllReduceStep)(run, device)
    if run.zero_stage == 3:
        return (Zero3Step if run.offload == "none" else Offload3Step)(run, device)
    return (ZeroStep if run.offload == "none" else OffloadStep)(run, device, rank)


def candidate_ranks(run: Run, device: Device) -> list[int]:
    """Ranks of which one has the largest peak: all ranks of a few; of many, the first, the last and the largest owners.

    At stages 1 and 2 what differs is a rank's owned gradients, the fp64 norm of the largest, and when in backward they
    come. The last is left out: of tiny models' many ranks one that isn't asked may have 1.5 % more.
    """
    if run.engine == "ddp" or run.zero_stage in (0, 3):
        return [0]
    if run.world_size <= FEW_RANKS:
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
