"""`deepspeed_config`: what DeepSpeed is told for a run, from the files in `data/deepspeed/`.

They are files that Hugging Face's `Trainer` and `accelerate launch` take too: what depends on the run is "auto" there.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from labs_utils.device import DATA
from labs_utils.run import Run

OWN_FIELDS = {"stage": "zero_stage"}
OFFLOADS = ("offload_optimizer", "offload_param")  # objects in the files, which a run's own keys are merged into
OWN_OFFLOAD_FIELDS = ("device", "nvme_path")
SIZES = {  # numbers of elements, and the least that there can be
    "reduce_bucket_size": 1, "allgather_bucket_size": 1, "sub_group_size": 1, "stage3_prefetch_bucket_size": 0,
    "stage3_max_live_parameters": 0, "stage3_max_reuse_distance": 0, "stage3_param_persistence_threshold": 0,
}  # fmt: skip
LARGEST_ELEMENTS = 2**62
ACCUMULATION_TYPES = ("fp32", "bf16", "fp16", None)
OUTSIDE = ("gradient_clipping", "data_types", "communication_data_type")  # not in DeepSpeed's `zero_optimization`


def config_file(run: Run) -> Path:
    """The file for a run's stage and offload; it isn't there where DeepSpeed has no such combination."""
    offload = "" if run.offload == "none" else f"_offload_{run.offload}"
    return DATA / "deepspeed" / f"zero{run.zero_stage}{offload}.json"


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


BUCKET_ELEMENTS = 500_000_000  # zero/config.py, `reduce_bucket_size`


ALLREDUCE_ELEMENTS = 500_000_000  # engine.py, `MEMORY_OPT_ALLREDUCE_SIZE`


STAYING_ELEMENTS = 100_000  # zero/config.py, `param_persistence_threshold`


SUB_GROUP_ELEMENTS = 1_000_000_000  # zero/config.py, `sub_group_size`


LIMITS = {
    "prefetch": "stage3_prefetch_bucket_size",
    "reuse_distance": "stage3_max_reuse_distance",
    "live": "stage3_max_live_parameters",
}


def limits(zero: dict) -> Limits:
    """The limits in a run's `zero`, defaults for the others."""
    return Limits(**{name: int(zero[key]) for name, key in LIMITS.items() if key in zero})


@dataclass
class Limits:
    """DeepSpeed's settings of the same meaning, in elements (zero/config.py has the defaults)."""

    prefetch: int = 50_000_000
    reuse_distance: int = 1_000_000_000
    live: int = 1_000_000_000
