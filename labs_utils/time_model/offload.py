"""What an offloaded optimizer adds to a step, in seconds, from rates that were measured one by one.

DeepSpeed 0.19.8 does these things one after the other: gradients down, Adam, the new weights rounded, and up. So the
terms sum up. Rates are those of all ranks at once (`labs_utils.workers.host`): they share the host's memory.
"""

from __future__ import annotations

from typing import NamedTuple

from labs_utils.device import Device
from labs_utils.precision import FP32_BYTES, precision_of
from labs_utils.recordings import Benchmark, benchmarks
from labs_utils.run import Run
from labs_utils.time_model.subjects import CPU_ADAM, OF_ALL_RANKS, ROUNDING, SCALING, TO_DEVICE, TO_HOST, transfer
from labs_utils.zero_settings import accumulates_on_host, limits

ROUNDED_BYTES = 6  # of a parameter, from fp32 to bf16
TERMS = ("gradient_transfer", "clipping", "cpu_adam", "rounding", "parameter_transfer")


class HostRates(NamedTuple):
    """Of one rank, while the others do the same: bytes/s down and up the link, parameters/s of work on the host.

    `pageable_up` is from memory that isn't pinned, whatever the other two are.
    """

    down: float
    up: float
    pageable_up: float
    adam: float
    rounding: float
    scaling: float


def host_lines(device: Device, ranks: int | None = None) -> list[Benchmark]:
    """What was recorded of the host with so many ranks, or the next fewer, or else the fewest; None: with the most."""
    lines = [line for line in benchmarks(device) if line.subject.startswith(OF_ALL_RANKS)]
    known = sorted({line.shape["ranks"] for line in lines})
    nearest = max((count for count in known if ranks is None or count <= ranks), default=min(known, default=None))
    return [line for line in lines if line.shape["ranks"] == nearest]


def recorded_threads(device: Device, ranks: int | None = None) -> list[int]:
    """The numbers of threads with which the host's work was recorded."""
    return sorted({line.shape["threads"] for line in host_lines(device, ranks) if "threads" in line.shape})


def recorded_host_rates(
    device: Device, threads: int | None = None, pinned: bool = True, ranks: int | None = None
) -> HostRates | None:
    """The rates recorded on a device's machine with so many threads and ranks (None: the most); None if there are none.

    Ranks share the host's memory: one alone works faster than each of two.
    """
    known = recorded_threads(device, ranks)
    threads = threads or (known[-1] if known else 0)
    rates = {
        line.subject.removeprefix(OF_ALL_RANKS): line.value["median"]
        for line in host_lines(device, ranks)
        if line.shape.get("threads", threads) == threads
    }
    names = (transfer(TO_HOST, pinned), transfer(TO_DEVICE, pinned), transfer(TO_DEVICE, pinned=False))
    names += (CPU_ADAM, ROUNDING, SCALING)
    return HostRates(*(rates[name] for name in names)) if rates.keys() >= set(names) else None


def moved_bytes(run: Run) -> dict[str, float]:
    """Bytes that a rank sends to the host and gets back in a step.

    Gradients go down in the masters' type in the last micro-step, new weights come up in the model's type. Stage 2 that
    accumulates also sends each micro-step's sum down in that type, and fetches it in each but the first, unless it
    accumulates in fp32. Stage 3 does both in every micro-step; offloaded weights come up for each forward, and again
    for each backward unless they are kept.
    """
    owned, numbers = run.model.parameters / run.world_size, precision_of(run)
    down = up = 0
    if accumulates_on_host(run):
        down, up = run.grad_accum, run.grad_accum - 1
    if run.zero_stage == 3:
        down = up = run.grad_accum
    if run.offload == "all":
        is_kept = run.model.parameters <= limits(run.zero).reuse_distance
        up += (1 if is_kept else 2) * run.grad_accum - 1  # new weights stay where they are
    return {
        "device_to_host": (numbers.updated.bytes + numbers.gradient.bytes * down) * owned,
        "host_to_device": numbers.weight.bytes * (1 + up) * owned,
    }


def offload_seconds(run: Run, rates: HostRates) -> dict[str, float] | None:
    """Seconds that offload adds to a step of the run, by `TERMS`; None for what isn't covered.

    The host's rates were measured on fp32, and its memory sets them: with masters in bf16 there is less to pass over.
    At stage 3 new weights come up from where they were rounded, which isn't pinned.
    """
    settings = run.zero.get("offload_optimizer", {})
    is_partial = settings.get("ratio", 1) != 1 or settings.get("super_offload")
    if run.offload == "none" or run.optimizer != "adamw" or is_partial:
        return None
    owned, moved = run.model.parameters / run.world_size, moved_bytes(run)
    narrow, wide = precision_of(run).weight.bytes, precision_of(run).updated.bytes
    last = 0.0 if run.offload == "all" else narrow * owned
    return {
        "gradient_transfer": moved["device_to_host"] / rates.down + (moved["host_to_device"] - last) / rates.up,
        "clipping": owned * wide / FP32_BYTES / rates.scaling if run.zero.get("gradient_clipping") else 0.0,
        "cpu_adam": owned * wide / FP32_BYTES / rates.adam,
        "rounding": owned * (narrow + wide) / ROUNDED_BYTES / rates.rounding if narrow < FP32_BYTES else 0.0,
        "parameter_transfer": last / (rates.up if run.zero_stage < 3 else rates.pageable_up),
    }
