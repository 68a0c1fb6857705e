"""`deepspeed_config`: what DeepSpeed is told for a run, from the files in `data/deepspeed/`.

They are files that Hugging Face's `Trainer` and `accelerate launch` take too: what depends on the run is "auto" there.
"""

from __future__ import annotations

import json
from itertools import starmap
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


def deepspeed_config(run: Run, pin_memory: bool) -> dict:
    """The run's file with every "auto" filled in and the run's own `zero` keys on top, for `deepspeed.initialize`.

    No clipping, if the run asks for none: then a step is plain PyTorch's. `pin_memory` is for GPUs; on a CPU DeepSpeed
    would compile an operator.
    """
    config = json.loads(config_file(run).read_text("utf-8"))
    config |= {
        "train_micro_batch_size_per_gpu": run.micro_batch,
        "gradient_accumulation_steps": run.grad_accum,
        "gradient_clipping": 0.0,
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 2**31,
    }
    for name in ("bf16", "fp16"):
        config[name]["enabled"] = run.precision == f"{name}-master"
    if run.precision == "bf16":
        config["bf16"] = {"enabled": True, "bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}
    zero = config["zero_optimization"]
    own = dict(run.zero)
    for offload in OFFLOADS:
        if offload in zero:
            zero[offload] |= {"pin_memory": pin_memory, **own.pop(offload, {})}
            zero[offload]["pin_memory"] &= pin_memory
    outside = {key: own.pop(key) for key in OUTSIDE if key in own}
    return config | outside | {"zero_optimization": {**zero, **own}}


def why_not_plain(run: Run, **others) -> str | None:
    """Why the course's training steps don't make this run yet; None if they do. `others` are fields, as they can be."""
    for field, value in {"mode": "train", "weights": "plain", "lora_rank": 0, "compile": False, **others}.items():
        if getattr(run, field) != value:
            return f"{field} {getattr(run, field)!r} isn't covered yet; {value!r} is"
    return None


def why_not_distributed(run: Run) -> str | None:
    """Why no engine for several ranks makes this run; None if one does."""
    if reason := why_not_plain(run):
        return reason
    return why_not_ddp(run) if run.engine == "ddp" else why_not_deepspeed(run)


def why_not_ddp(run: Run) -> str | None:
    if run.precision.endswith("-master"):
        return f"precision {run.precision!r} is DeepSpeed's; with 'ddp' take 'fp32', 'bf16' or a mixed one"
    if run.offload != "none" or run.zero:
        return "offload and zero are DeepSpeed's; take engine 'deepspeed'"
    return None


def why_not_deepspeed(run: Run) -> str | None:
    if run.precision not in ("fp32", "bf16", "bf16-master", "fp16-master"):
        return f"with DeepSpeed take precision 'bf16-master', 'bf16' or 'fp32', not {run.precision!r}"
    if run.precision == "bf16" and not run.zero_stage:
        return "DeepSpeed has precision 'bf16' from stage 1 on; at stage 0 take 'bf16-master'"
    if run.optimizer in ("none", "adamw-8bit"):
        return f"optimizer {run.optimizer!r} with DeepSpeed isn't covered yet; 'adamw' is"
    if run.precision == "bf16" and run.offload != "none" and run.optimizer != "adamw":
        return f"offload in precision 'bf16' needs DeepSpeed's CPU Adam: take optimizer 'adamw', not {run.optimizer!r}"
    if own := OWN_FIELDS.keys() & run.zero.keys():
        return f"zero key {min(own)!r} is a field of the run; take {OWN_FIELDS[min(own)]!r}"
    if reason := why_not_offload_keys(run) or next(filter(None, starmap(why_not_value, run.zero.items())), None):
        return reason
    if not config_file(run).exists():
        return f"DeepSpeed has no offload {run.offload!r} at stage {run.zero_stage}: parameters need 3, the optimizer 1"
    return None


def why_not_offload_keys(run: Run) -> str | None:
    for offload in sorted(run.zero.keys() & set(OFFLOADS)):
        if not isinstance(run.zero[offload], dict):
            return f"zero key {offload!r} is a JSON object, such as {{'pin_memory': false}}"
        if own := [key for key in OWN_OFFLOAD_FIELDS if key in run.zero[offload]]:
            return f"zero key {offload!r} has no {own[0]!r} here: the run's field 'offload' says what goes to the host"
        if run.offload == "none" or (offload, run.offload) == ("offload_param", "optimizer"):
            return f"zero key {offload!r} needs a run that offloads it; offload is {run.offload!r}"
        if type(pins := run.zero[offload].get("pin_memory", True)) is not bool:
            return f"'pin_memory' in zero key {offload!r} must be true or false, not {str(pins)[:40]!r}"
    return None


def why_not_value(key: str, value) -> str | None:
    """What is wrong with the value of a `zero` key that the course knows; DeepSpeed judges the others."""
    is_number, wanted = type(value) in (int, float), None
    if key in SIZES and not (is_number and SIZES[key] <= value <= LARGEST_ELEMENTS and value == int(value)):
        wanted = f"a whole number of elements, at least {SIZES[key]}"
    if key == "gradient_clipping" and not (is_number and 0 <= value < float("inf")):
        wanted = "a number from 0 on"
    if key == "overlap_comm" and type(value) is not bool:
        wanted = "true or false"
    if key == "data_types" and not is_accumulation(value):
        wanted = "an object with 'grad_accum_dtype', one of 'fp32', 'bf16' and 'fp16'"
    return f"zero key {key!r} must be {wanted}, not {str(value)[:40]!r}" if wanted else None


def is_accumulation(value) -> bool:
    """Whether it says in which type gradients are accumulated, and nothing else."""
    known = isinstance(value, dict) and value.keys() <= {"grad_accum_dtype"}
    return known and value.get("grad_accum_dtype") in ACCUMULATION_TYPES


def master_bytes(run: Run) -> int:
    """Of a master weight, and of each gradient and moment beside it: 4, but 2 where all of a run is bf16."""
    return 2 if run.precision == "bf16" else 4


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
