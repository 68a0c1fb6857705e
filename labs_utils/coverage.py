"""What each method covers: why a run isn't answered, in one sentence."""

from __future__ import annotations

from difflib import get_close_matches
from itertools import starmap

from labs_utils.device import Device
from labs_utils.run import Run
from labs_utils.zero_settings import (
    ACCUMULATION_TYPES,
    LARGEST_ELEMENTS,
    OFFLOADS,
    OWN_FIELDS,
    OWN_OFFLOAD_FIELDS,
    SIZES,
    accumulation_type,
    config_file,
)


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


def why_unsupported(run: Run, device: Device) -> str | None:
    """Why no formula covers this run on this device; None if one does."""
    if run.engine == "torch":
        return why_not_built(run) or why_no_kernel(run, device)
    return why_not_distributed(run) or why_not_covered(run) or why_no_kernel(run, device)


def why_not_built(run: Run) -> str | None:
    """Why no method answers this run yet: the fields that the course's training step doesn't have."""
    if run.engine == "torch" and run.world_size > 1:
        return f"world_size {run.world_size} needs engine 'ddp' or 'deepspeed', not 'torch'"
    if run.engine == "torch" and run.offload != "none":
        return f"offload {run.offload!r} needs engine 'deepspeed' and a zero_stage, not engine 'torch'"
    if reason := why_not_plain(run, engine="torch", world_size=1, offload="none", zero={}):
        return reason
    if run.precision.endswith("-master"):
        return f"precision {run.precision!r} isn't covered yet: plain torch keeps no fp32 master copy"
    return None


def why_no_kernel(run: Run, device: Device) -> str | None:
    """Why this combination of kernels can't run at all on this device, or isn't covered."""
    kernel, model = device.attention_kernel(run), run.model
    if run.checkpointing.startswith("keep-") and kernel in ("eager", "math"):
        return f"checkpointing {run.checkpointing!r} keeps a fused kernel's output, and {kernel} attention has none"
    if run.padded and run.attention in ("flash_attention_2", "sdpa-cudnn", "sdpa-math"):
        return f"attention {run.attention!r} on a padded batch isn't covered yet; 'sdpa' and 'eager' are"
    if run.padded and run.checkpointing == "offload" and device.is_gpu:
        return "checkpointing 'offload' of a padded batch isn't covered on a GPU: it saves a mask for each head"
    if device.is_gpu and device.compute_capability < 8 and run.attention in ("flash_attention_2", "sdpa-cudnn"):
        return f"attention {run.attention!r} needs compute capability 8.0 or more, and {device.name} has less"
    if run.precision == "fp32" and run.attention in ("flash_attention_2", "sdpa-cudnn"):
        return f"attention {run.attention!r} has no fp32 kernel"
    if model.head_dim > 256 and kernel not in ("eager", "math"):
        return f"head_dim {model.head_dim} is beyond what fused attention kernels take, which is 256"
    grouped = model.num_attention_heads != model.num_key_value_heads
    if kernel == "efficient" and grouped and not run.padded:
        return "PyTorch's memory-efficient attention has no kernel for grouped key/value heads"
    return None


def why_not_torch(run: Run) -> str | None:
    """Why the run isn't made of torch operators alone; None if it is."""
    if "liger" in (run.layer_kernels, run.loss_kernel):
        return "Liger's kernels need a GPU; estimate covers them"
    if run.engine != "torch":
        return f"engine {run.engine!r} isn't dry-run; estimate covers it"
    if run.optimizer == "adamw-8bit":
        return "bitsandbytes' optimizers aren't made of torch operators; estimate covers them"
    return None


COVERED = sorted({"overlap_comm", "gradient_clipping", *OFFLOADS, *SIZES})


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


def why_not_offloaded(run: Run) -> str | None:
    """Why these steps don't cover a run that offloads; None if they do."""
    if run.optimizer not in ("adamw", "sgd"):
        return f"optimizer {run.optimizer!r} with offload isn't estimated yet; 'adamw' is"
    for name in ("offload_optimizer", "offload_param"):
        if other := run.zero.get(name, {}).keys() - {"pin_memory"}:
            return f"{min(other)!r} in zero key {name!r} isn't estimated yet; 'pin_memory' is"
    if "data_types" in run.zero and (run.zero_stage != 2 or accumulation_type(run) not in ("fp32", None)):
        return "zero key 'data_types' isn't estimated yet but for 'grad_accum_dtype' 'fp32' at stage 2"
    return None


def why_not_on_cpu(run: Run) -> str | None:
    """Why a run can't be measured on a CPU; None if it can."""
    if "liger" in (run.layer_kernels, run.loss_kernel):
        return "Liger's kernels need a GPU; estimate covers them"
    if run.precision == "fp16-master":
        return "DeepSpeed trains in fp16 on GPUs only; take 'bf16-master' on a CPU"
    return None
