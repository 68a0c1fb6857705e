"""DeepSpeed's own settings in a run's `zero`: which keys there are, their defaults, and what values may be.

The files in `data/deepspeed/` are what Hugging Face's `Trainer` and `accelerate launch` take too: what depends on the
run is "auto" there.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labs_utils.device import DATA
from labs_utils.run import Run

OWN_FIELDS = {"stage": "zero_stage"}
OFFLOADS = ("offload_optimizer", "offload_param")  # objects in the files, which a run's own keys are merged into
OWN_OFFLOAD_FIELDS = ("device", "nvme_path")
OUTSIDE = ("gradient_clipping", "data_types", "communication_data_type")  # not in DeepSpeed's `zero_optimization`
SIZES = {  # numbers of elements, and the least that there can be
    "reduce_bucket_size": 1, "allgather_bucket_size": 1, "sub_group_size": 1, "stage3_prefetch_bucket_size": 0,
    "stage3_max_live_parameters": 0, "stage3_max_reuse_distance": 0, "stage3_param_persistence_threshold": 0,
}  # fmt: skip
LARGEST_ELEMENTS = 2**62
ALLREDUCE_ELEMENTS = 500_000_000  # engine.py, `MEMORY_OPT_ALLREDUCE_SIZE`; no key sets it


@dataclass
class Limits:
    """DeepSpeed's settings of these meanings, in elements; zero/config.py has the defaults."""

    bucket: int = 500_000_000
    sub_group: int = 1_000_000_000
    staying: int = 100_000
    prefetch: int = 50_000_000
    reuse_distance: int = 1_000_000_000
    live: int = 1_000_000_000


LIMITS = {
    "bucket": "reduce_bucket_size",
    "sub_group": "sub_group_size",
    "staying": "stage3_param_persistence_threshold",
    "prefetch": "stage3_prefetch_bucket_size",
    "reuse_distance": "stage3_max_reuse_distance",
    "live": "stage3_max_live_parameters",
}


def limits(zero: dict) -> Limits:
    """The limits in a run's `zero`, defaults for the others.

    >>> limits({"reduce_bucket_size": 2e8}).bucket, limits({}).bucket
    (200000000, 500000000)
    """
    return Limits(**{name: int(zero[key]) for name, key in LIMITS.items() if key in zero})


def config_file(run: Run) -> Path:
    """The file for a run's stage and offload; it isn't there where DeepSpeed has no such combination."""
    offload = "" if run.offload == "none" else f"_offload_{run.offload}"
    return DATA / "deepspeed" / f"zero{run.zero_stage}{offload}.json"


def pins_memory(run: Run, offload: str = "offload_optimizer") -> bool:
    """Whether what is offloaded, "offload_optimizer" or "offload_param", lies in pinned memory on a GPU's host."""
    return run.zero.get(offload, {}).get("pin_memory", True)


def accumulation_type(run: Run) -> str | None:
    """The type in which gradients are accumulated, if the run says one."""
    return run.zero.get("data_types", {}).get("grad_accum_dtype")


def accumulates_on_host(run: Run) -> bool:
    """Whether an offloaded step sends each micro-step's sum to the host: stage 2 does, unless it widens 16 bits."""
    widens = accumulation_type(run) == "fp32" and run.precision != "fp32"
    return run.zero_stage == 2 and run.grad_accum > 1 and not widens


def holds_sums_apart(run: Run) -> bool:
    """Whether those sums lie beside the gradients that the update reads; in `bf16` they are the same."""
    return accumulates_on_host(run) and run.precision != "bf16"


def is_number(value: Any) -> bool:
    """Whether a value from JSON is a number; true and false are none."""
    return type(value) in (int, float)


def is_accumulation(value: Any) -> bool:
    """Whether a value says in which type gradients are accumulated, and nothing else."""
    known = isinstance(value, dict) and value.keys() <= {"grad_accum_dtype"}
    return known and value.get("grad_accum_dtype") in ("fp32", "bf16", "fp16", None)


def wrong_value(key: str, value: Any) -> tuple[str, str] | None:
    """What the value of a key in `zero` must be, and what it is; None if it is right or DeepSpeed's to judge.

    >>> wrong_value("sub_group_size", 0.5)
    ('a whole number of elements, at least 1', '0.5')
    """
    is_right, wanted = True, ""
    if key in SIZES:
        is_right = is_number(value) and SIZES[key] <= value <= LARGEST_ELEMENTS and value == int(value)
        wanted = f"a whole number of elements, at least {SIZES[key]}"
    if key == "gradient_clipping":
        is_right, wanted = is_number(value) and 0 <= value < float("inf"), "a number from 0 on"
    if key == "overlap_comm":
        is_right, wanted = type(value) is bool, "true or false"
    if key == "data_types":
        is_right = is_accumulation(value)
        wanted = "an object with 'grad_accum_dtype', one of 'fp32', 'bf16' and 'fp16'"
    return None if is_right else (wanted, str(value)[:40])
