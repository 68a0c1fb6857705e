"""What each method covers: lists of rules, each a condition and the sentence that says why a run isn't answered.

A method goes through its rules in order, and the first one that applies is its reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import Any, NamedTuple

from labs_utils.device import Device
from labs_utils.run import Run
from labs_utils.zero_settings import (
    OFFLOADS,
    OWN_FIELDS,
    OWN_OFFLOAD_FIELDS,
    SIZES,
    accumulation_type,
    config_file,
    wrong_value,
)


class Rule(NamedTuple):
    """A run isn't covered if `applies(run, about)` is true; `about` is the device, or one key of the run's `zero`.

    `sentence` is filled with `run`, `about`, and with what `applies` returned as `found`.
    """

    applies: Callable[[Run, Any], Any]
    sentence: str


def first_reason(rules: Iterable[Rule], run: Run, about: Device | str | None = None) -> str | None:
    """The sentence of the first rule that applies; None if none does.

    >>> first_reason([Rule(lambda run, _: run.padded, "seq_len {run.seq_len} is padded")], Run(padded=True))
    'seq_len 4096 is padded'
    """
    for rule in rules:
        if found := rule.applies(run, about):
            return rule.sentence.format(run=run, about=about, found=found)
    return None


def only(field: str, value) -> Rule:
    """A field of which one value is covered."""
    sentence = f"{field} {{found[0]!r}} isn't covered yet; {{found[1]!r}} is"
    return Rule(lambda run, _: getattr(run, field) != value and (getattr(run, field), value), sentence)


def for_each_key(keys: Callable[[Run], Iterable[str]], *rules: Rule) -> Rule:
    """All `rules` about one key of the run's `zero`, then all about the next."""

    def first_of_keys(run: Run, _) -> str | None:
        return next(filter(None, (first_reason(rules, run, key) for key in keys(run))), None)

    return Rule(first_of_keys, "{found}")


def uses_liger(run: Run) -> bool:
    return "liger" in (run.layer_kernels, run.loss_kernel)


def uses_16_bit_kernel(run: Run) -> bool:
    """Whether attention is a kernel that PyTorch or flash-attn has for 16 bits and newer GPUs alone."""
    return run.attention in ("flash_attention_2", "sdpa-cudnn")


# Fields that no training step has yet.
NOT_YET = [only("mode", "train"), only("weights", "plain"), only("lora_rank", 0), only("compile", False)]

# What each engine has, and precision and optimizer with it.
PLAIN_TORCH = [
    Rule(lambda run, _: run.world_size > 1,
         "world_size {run.world_size} needs engine 'ddp' or 'deepspeed', not 'torch'"),
    Rule(lambda run, _: run.offload != "none",
         "offload {run.offload!r} needs engine 'deepspeed' and a zero_stage, not engine 'torch'"),
    *NOT_YET,
    only("zero", {}),
    Rule(lambda run, _: run.precision.endswith("-master"),
         "precision {run.precision!r} isn't covered yet: plain torch keeps no fp32 master copy"),
]  # fmt: skip

DDP = [
    *NOT_YET,
    Rule(lambda run, _: run.precision.endswith("-master"),
         "precision {run.precision!r} is DeepSpeed's; with 'ddp' take 'fp32', 'bf16' or a mixed one"),
    Rule(lambda run, _: run.offload != "none" or run.zero,
         "offload and zero are DeepSpeed's; take engine 'deepspeed'"),
]  # fmt: skip

# Keys and values in `zero`: the run's own fields, then `offload_optimizer` and `offload_param`, then all values.
ZERO = [
    for_each_key(
        lambda run: sorted(OWN_FIELDS.keys() & run.zero.keys()),
        Rule(lambda run, key: OWN_FIELDS[key],
             "zero key {about!r} is a field of the run; take {found!r}"),
    ),
    for_each_key(
        lambda run: sorted(run.zero.keys() & set(OFFLOADS)),
        Rule(lambda run, key: not isinstance(run.zero[key], dict),
             "zero key {about!r} is a JSON object, such as {{'pin_memory': false}}"),
        Rule(lambda run, key: [own for own in OWN_OFFLOAD_FIELDS if own in run.zero[key]],
             "zero key {about!r} has no {found[0]!r} here: the run's field 'offload' says what goes to the host"),
        Rule(lambda run, key: run.offload == "none" or (key, run.offload) == ("offload_param", "optimizer"),
             "zero key {about!r} needs a run that offloads it; offload is {run.offload!r}"),
        Rule(lambda run, key: type(pins := run.zero[key].get("pin_memory", True)) is not bool and [str(pins)[:40]],
             "'pin_memory' in zero key {about!r} must be true or false, not {found[0]!r}"),
    ),
    for_each_key(
        lambda run: run.zero,
        Rule(lambda run, key: wrong_value(key, run.zero[key]),
             "zero key {about!r} must be {found[0]}, not {found[1]!r}"),
    ),
]  # fmt: skip

DEEPSPEED = [
    *NOT_YET,
    Rule(lambda run, _: run.precision not in ("fp32", "bf16", "bf16-master", "fp16-master"),
         "with DeepSpeed take precision 'bf16-master', 'bf16' or 'fp32', not {run.precision!r}"),
    Rule(lambda run, _: run.precision == "bf16" and not run.zero_stage,
         "DeepSpeed has precision 'bf16' from stage 1 on; at stage 0 take 'bf16-master'"),
    Rule(lambda run, _: run.optimizer in ("none", "adamw-8bit"),
         "optimizer {run.optimizer!r} with DeepSpeed isn't covered yet; 'adamw' is"),
    Rule(lambda run, _: run.precision == "bf16" and run.offload != "none" and run.optimizer != "adamw",
         "offload in precision 'bf16' needs DeepSpeed's CPU Adam: take optimizer 'adamw', not {run.optimizer!r}"),
    *ZERO,
    Rule(lambda run, _: not config_file(run).exists(),
         "DeepSpeed has no offload {run.offload!r} at stage {run.zero_stage}: parameters need 3, the optimizer 1"),
]  # fmt: skip

ENGINES = {"torch": PLAIN_TORCH, "ddp": DDP, "deepspeed": DEEPSPEED}

ESTIMATED_KEYS = sorted({"overlap_comm", "gradient_clipping", *OFFLOADS, *SIZES})


def what_is_estimated(run: Run, key: str) -> str | None:
    """For a key of `zero` that isn't estimated: the key that may be meant, or all that are."""
    if key in ESTIMATED_KEYS or (key == "data_types" and run.offload != "none"):
        return None
    meant = get_close_matches(key, ESTIMATED_KEYS, 1)
    return f"is {meant[0]!r} meant?" if meant else f"{', '.join(ESTIMATED_KEYS)} are"


# What the formulas for several ranks don't have: first of offload, then of ZeRO. Plain torch passes all of it.
NO_FORMULA = [
    Rule(lambda run, _: run.offload != "none" and run.optimizer not in ("adamw", "sgd"),
         "optimizer {run.optimizer!r} with offload isn't estimated yet; 'adamw' is"),
    for_each_key(
        lambda run: OFFLOADS,
        Rule(lambda run, key: sorted(run.zero.get(key, {}).keys() - {"pin_memory"}),
             "{found[0]!r} in zero key {about!r} isn't estimated yet; 'pin_memory' is"),
    ),
    Rule(lambda run, _: run.offload != "none" and "data_types" in run.zero
         and (run.zero_stage != 2 or accumulation_type(run) not in ("fp32", None)),
         "zero key 'data_types' isn't estimated yet but for 'grad_accum_dtype' 'fp32' at stage 2"),
    Rule(lambda run, _: run.zero_stage == 3 and uses_liger(run),
         "Liger's kernels at ZeRO stage 3 aren't estimated yet; 'torch' is"),
    for_each_key(
        lambda run: run.zero,
        Rule(what_is_estimated, "zero key {about!r} isn't estimated yet; {found}"),
    ),
]  # fmt: skip

# Combinations of kernels that a device can't run at all, or that no formula covers.
KERNELS = [
    Rule(lambda run, device: run.checkpointing.startswith("keep-")
         and device.attention_kernel(run) in ("eager", "math") and device.attention_kernel(run),
         "checkpointing {run.checkpointing!r} keeps a fused kernel's output, and {found} attention has none"),
    Rule(lambda run, _: run.padded and (uses_16_bit_kernel(run) or run.attention == "sdpa-math"),
         "attention {run.attention!r} on a padded batch isn't covered yet; 'sdpa' and 'eager' are"),
    Rule(lambda run, device: run.padded and run.checkpointing == "offload" and device.is_gpu,
         "checkpointing 'offload' of a padded batch isn't covered on a GPU: it saves a mask for each head"),
    Rule(lambda run, device: device.is_gpu and device.compute_capability < 8 and uses_16_bit_kernel(run),
         "attention {run.attention!r} needs compute capability 8.0 or more, and {about.name} has less"),
    Rule(lambda run, _: run.precision == "fp32" and uses_16_bit_kernel(run),
         "attention {run.attention!r} has no fp32 kernel"),
    Rule(lambda run, device: run.model.head_dim > 256 and device.attention_kernel(run) not in ("eager", "math"),
         "head_dim {run.model.head_dim} is beyond what fused attention kernels take, which is 256"),
    Rule(lambda run, device: device.attention_kernel(run) == "efficient" and not run.padded
         and run.model.num_attention_heads != run.model.num_key_value_heads,
         "PyTorch's memory-efficient attention has no kernel for grouped key/value heads"),
]  # fmt: skip

NO_LIGER = Rule(lambda run, _: uses_liger(run), "Liger's kernels need a GPU; estimate covers them")

# What isn't made of torch operators alone.
NOT_DRY_RUN = [
    NO_LIGER,
    Rule(lambda run, _: run.engine != "torch",
         "engine {run.engine!r} isn't dry-run; estimate covers it"),
    Rule(lambda run, _: run.optimizer == "adamw-8bit",
         "bitsandbytes' optimizers aren't made of torch operators; estimate covers them"),
]  # fmt: skip

NOT_ON_CPU = [
    NO_LIGER,
    Rule(lambda run, _: run.precision == "fp16-master",
         "DeepSpeed trains in fp16 on GPUs only; take 'bf16-master' on a CPU"),
]  # fmt: skip


def why_not_built(run: Run) -> str | None:
    """Why the run's engine doesn't make this run yet; None if it does."""
    return first_reason(ENGINES[run.engine], run)


def why_not_measured(run: Run, on_gpu: bool) -> str | None:
    """Why `measure` can't run this on a GPU, or on a CPU; None if it can."""
    return why_not_built(run) or (None if on_gpu else first_reason(NOT_ON_CPU, run))


def why_not_estimated(run: Run, device: Device) -> str | None:
    """Why `estimate` doesn't cover this run on this device; None if it does."""
    return why_not_built(run) or first_reason([*NO_FORMULA, *KERNELS], run, device)


def why_not_dry_run(run: Run, device: Device) -> str | None:
    """Why `dry_run` doesn't cover this run on this device; None if it does."""
    return why_not_estimated(run, device) or first_reason(NOT_DRY_RUN, run)
