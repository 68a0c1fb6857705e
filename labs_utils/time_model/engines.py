"""What DDP and DeepSpeed 0.19.8 add to a step's time: passes over gradients and weights, and collectives.

Files named here lie under deepspeed/runtime. A pass reads and writes: copying 16-bit numbers moves 4 bytes each.
"""

from __future__ import annotations

from dataclasses import dataclass

from labs_utils.precision import FP32, precision_of
from labs_utils.run import Run
from labs_utils.zero_settings import ALLREDUCE_ELEMENTS, limits

DDP_BUCKET_BYTES = 25 * 2**20  # torch/nn/parallel/distributed.py, `bucket_cap_mb`
CHECKED = 4  # utils.py, `has_inf_or_nan`: the largest and the smallest of 16-bit gradients
NORM_FP32 = 10  # fp16/unfused_optimizer.py, `get_weight_norm`: to fp32, and a norm of that
UNSCALED = 8  # in fp32, and only where losses are scaled


@dataclass(frozen=True)
class Collective:
    """A collective over `nbytes` in all, `piece_bytes` at a time; once a step, or `each_micro_step`.

    One that is `beside` runs during forward and backward, on a stream of its own.
    """

    name: str
    nbytes: float
    piece_bytes: float
    each_micro_step: bool = False
    beside: bool = False


@dataclass(frozen=True)
class EngineWork:
    """What an engine adds on one rank: bytes of its passes in a micro-step and once a step, and collectives.

    The rank's optimizer updates `owned_share` of the parameters. If `waits`, the host waits for the GPU before it.
    """

    micro_bytes: float = 0
    step_bytes: float = 0
    norm_bytes: float = 0  # of those norms that are in fp64
    collectives: tuple[Collective, ...] = ()
    owned_share: float = 1.0
    waits: bool = True


def engine_work(run: Run) -> EngineWork:
    """What the run's engine adds to a plain step on one of its ranks."""
    if run.engine == "torch":
        return plain_work(run)
    if run.engine == "ddp":
        return ddp_work(run)
    return {0: all_reduce_work, 1: partition_work, 2: partition_work, 3: stage_3_work}[run.zero_stage](run)


def plain_work(run: Run) -> EngineWork:
    """Plain PyTorch; with a scaled loss, gradients are unscaled, and the host reads whether all are finite."""
    is_scaled = precision_of(run).scales_losses
    return EngineWork(step_bytes=UNSCALED * run.model.parameters * is_scaled, waits=is_scaled)


def ddp_work(run: Run) -> EngineWork:
    """Gradients are copied into buckets, divided, and all-reduced during the last backward."""
    nbytes = precision_of(run).gradient.bytes * run.model.parameters
    reduced = Collective("all_reduce", nbytes, DDP_BUCKET_BYTES, beside=True)
    return EngineWork(step_bytes=4 * nbytes, collectives=(reduced,), waits=False)


def all_reduce_work(run: Run) -> EngineWork:
    """Stage 0: gradients flat, averaged, all-reduced and copied back; then `fp16/unfused_optimizer.py`."""
    itemsize, parameters = precision_of(run).gradient.bytes, run.model.parameters
    reduced = Collective("all_reduce", itemsize * parameters, itemsize * ALLREDUCE_ELEMENTS)
    of_master = CHECKED + NORM_FP32 + UNSCALED + 2 * cast_bytes(run) if itemsize == 2 else 0
    return EngineWork(step_bytes=(6 * itemsize + of_master) * parameters, collectives=(reduced,))


def partition_work(run: Run) -> EngineWork:
    """Stages 1 and 2: into a bucket, averaged, flat; the owned part kept, normed, in fp32, and weights gathered.

    Stage 2 reduces in each micro-step, and adds what it owns to what it has; stage 1 reduces in the last.
    """
    nbytes, ranks = precision_of(run).weight.bytes * run.model.parameters, run.world_size
    always, overlaps = run.zero_stage == 2, bool(run.zero.get("overlap_comm"))
    bucket_bytes = piece_bytes(run, limits(run.zero).bucket)
    to_bucket = (6 + (4 + 3 * (always and run.grad_accum > 1)) / ranks) * nbytes
    return EngineWork(
        micro_bytes=to_bucket * always,
        step_bytes=to_bucket * (not always) + (2 * nbytes + step_bytes(run)) / ranks,
        norm_bytes=norm_bytes(run),
        collectives=(
            Collective("all_reduce", nbytes, bucket_bytes, always, overlaps),
            Collective("all_gather", nbytes, nbytes),
        ),
        owned_share=1 / ranks,
    )


def stage_3_work(run: Run) -> EngineWork:
    """Stage 3: weights gathered for forward and, unless they are kept, for backward; gradients reduce-scattered."""
    itemsize, ranks, beside = precision_of(run).weight.bytes, run.world_size, run.zero.get("overlap_comm", True)
    nbytes, limit = itemsize * run.model.parameters, limits(run.zero)
    prefetch_bytes, bucket_bytes = piece_bytes(run, limit.prefetch), piece_bytes(run, limit.bucket)
    is_kept = run.model.parameters <= limit.reuse_distance
    return EngineWork(
        micro_bytes=(4 + 3 / ranks) * nbytes,
        step_bytes=step_bytes(run) / ranks,
        norm_bytes=norm_bytes(run),
        collectives=(
            Collective("all_gather", (1 if is_kept else 2) * nbytes, prefetch_bytes, True, beside),
            Collective("reduce_scatter", nbytes, bucket_bytes, True, beside),
        ),
        owned_share=1 / ranks,
    )


def piece_bytes(run: Run, elements: float) -> float:
    """So many elements at a time, though a weight, here of average size, is never cut to fit."""
    weights = 9 * run.model.num_hidden_layers + 2
    return precision_of(run).weight.bytes * max(elements, run.model.parameters / weights)


def step_bytes(run: Run) -> int:
    """Gradients to the masters' type, unscaled where losses are scaled, and weights back, of all parameters.

    In `bf16` gradients are of that type.
    """
    numbers = precision_of(run)
    copies = 1 if numbers.gradient == numbers.updated else 2
    return (copies * cast_bytes(run) + UNSCALED * numbers.scales_losses) * run.model.parameters


def cast_bytes(run: Run) -> int:
    """A copy from 16-bit weights to the type of the master weights, or back; none in fp32.

    >>> cast_bytes(Run(precision="bf16-master"))
    6
    """
    numbers = precision_of(run)
    return 0 if numbers.weight == FP32 else numbers.weight.bytes + numbers.updated.bytes


def norm_bytes(run: Run) -> float:
    """The norm of the owned gradients, in fp64: zero/utils.py, `get_norm_dtype`."""
    return (precision_of(run).gradient.bytes + 16) * run.model.parameters / run.world_size
