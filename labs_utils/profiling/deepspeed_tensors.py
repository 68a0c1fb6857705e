"""What a rank holds: the tensors of a distributed step by kind, as DeepSpeed 0.19 keeps them, and their bytes."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from contextlib import suppress

import psutil
import torch

from labs_utils.allocator import pinned_bytes

# The part of `labs_utils.answer.PARTS` that each kind counts as.
PART_OF = {
    "parameters": "parameters", "gradients": "gradients", "master_weights": "optimizer_states",
    "moments": "optimizer_states", "buffers": "buffers",
}  # fmt: skip
# Attributes of its optimizers: FP16_UnfusedOptimizer, and in runtime/zero stage_1_and_2.py and stage3.py.
MASTER_WEIGHTS = ("fp32_groups", "single_partition_of_fp32_groups", "fp32_partitioned_groups_flat")
GRADIENTS = (
    "averaged_gradients", "grads_in_partition", "all_grad_tensors", "offload_gradient_dict",
    "grad_partitions_flat_buffer",
)  # fmt: skip
BUCKETS = ("ipg_buckets",)  # during backward, gradients are views of them
PARAMETERS = ("bit16_groups_flat", "lp_param_buffer", "param_groups_fp16_flat_cpu_memory")
# Where an offloaded optimizer keeps what is the host's: the masters' gradients, staging copies, gradients to add to.
ON_HOST = (
    "param_buffer_of_bit16_for_cpu_offload_groups", "temp_grad_buffer_for_cpu_offload", "accumulated_grads_in_cpu",
    "grad_partitions_flat_buffer", "param_groups_fp16_flat_cpu_memory",
)  # fmt: skip


def host_tensors(step) -> list[torch.Tensor]:
    """The tensors that DeepSpeed keeps on the host for a run that offloads, each storage once.

    By what they are for: ranks on a CPU have no other memory.
    """
    zero = getattr(step, "zero_optimizer", None)
    if step.run.offload == "none":
        return []
    masters = attributes(zero, MASTER_WEIGHTS)
    moments = list(tensors_in(list(step.optimizer.state.values())))
    tensors = [*masters, *gradients(masters), *moments, *attributes(zero, ON_HOST)]
    if step.run.offload == "all":
        tensors += partitions(step.model.parameters())
    return [tensor for tensor in without_repeats({"host": tensors})["host"] if tensor.device.type == "cpu"]


def host_bytes(step) -> dict[str, int]:
    """Bytes of those tensors: "pinned" as PyTorch's allocator rounds them up, and "pageable"."""
    sizes = {"pinned": 0, "pageable": 0}
    for tensor in host_tensors(step):
        pinned = tensor.is_pinned()
        nbytes = tensor.untyped_storage().nbytes()
        sizes["pinned" if pinned else "pageable"] += pinned_bytes(nbytes) if pinned else nbytes
    return sizes


def held_tensors(step) -> dict[str, list[torch.Tensor]]:
    """The tensors of a `DdpStep` or `DeepSpeedStep` by kind (those of `PART_OF`), each storage under its first kind.

    "buffers" is whatever else DeepSpeed's optimizer refers to: buckets that it reduces gradients in, staging copies.
    """
    zero = getattr(step, "zero_optimizer", None)
    parameters = list(step.model.parameters())
    masters = attributes(zero, MASTER_WEIGHTS)
    by_kind = {
        "buckets": attributes(zero, BUCKETS),
        "parameters": [*parameters, *partitions(parameters), *attributes(zero, PARAMETERS)],
        "gradients": [*gradients(parameters + masters), *attributes(zero, GRADIENTS), *getattr(step, "buckets", [])],
        "master_weights": masters,
        "moments": list(tensors_in(list(step.optimizer.state.values()))),
        "buffers": list(tensors_in(zero)),
    }
    kept = without_repeats(by_kind)
    kept["buffers"] += kept.pop("buckets")
    return kept


def attributes(owner, names: tuple[str, ...]) -> list[torch.Tensor]:
    """The tensors in those attributes that the owner has."""
    return [tensor for name in names for tensor in tensors_in(getattr(owner, name, None))]


def gradients(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """The gradients of those that have one.

    >>> gradients([torch.zeros(2, requires_grad=True)])
    []
    """
    return [tensor.grad for tensor in tensors if tensor.grad is not None]


def partitions(parameters: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """At stage 3, this rank's slices of the parameters."""
    return [parameter.ds_tensor for parameter in parameters if hasattr(parameter, "ds_tensor")]


def tensors_in(value, depth: int = 4) -> Iterator[torch.Tensor]:
    """Every tensor in nested lists and dicts, and in the attributes of DeepSpeed's ZeRO objects."""
    if isinstance(value, torch.Tensor):
        yield value
    elif depth:
        if isinstance(value, (list, tuple, set)):
            inner = value
        elif isinstance(value, dict):
            inner = value.values()
        else:
            inner = vars(value).values() if type(value).__module__.startswith("deepspeed.runtime.") else ()
        for each in list(inner):
            yield from tensors_in(each, depth - 1)


def without_repeats(by_kind: dict[str, list[torch.Tensor]]) -> dict[str, list[torch.Tensor]]:
    """One tensor for each storage that has bytes, under the first kind that names it."""
    seen, kept = set(), {}
    for kind, tensors in by_kind.items():
        kept[kind] = []
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if storage.nbytes() and tensor.device.type != "meta" and storage._cdata not in seen:
                seen.add(storage._cdata)
                kept[kind].append(tensor)
    return kept


def held_bytes(step) -> dict[str, dict[str, int]]:
    """Bytes of the storages by kind, and by the device on which they are: {"moments": {"cpu": 1000}, …}."""
    return {kind: by_device(tensors) for kind, tensors in held_tensors(step).items()}


def by_device(tensors: Iterable[torch.Tensor]) -> dict[str, int]:
    """Bytes of the tensors' storages by device.

    >>> by_device([torch.zeros(10), torch.zeros(5, dtype=torch.bfloat16)])
    {'cpu': 50}
    """
    sizes: dict[str, int] = {}
    for tensor in tensors:
        sizes[tensor.device.type] = sizes.get(tensor.device.type, 0) + tensor.untyped_storage().nbytes()
    return sizes


def host_memory_bytes(step) -> dict[str, int]:
    """Bytes that are held on the host; with a GPU, what PyTorch's allocator of pinned memory says it has given out."""
    sizes = host_bytes(step)
    if step.device.type == "cuda":
        stats = torch.cuda.host_memory_stats()
        sizes |= {name: stats.get(f"{name}_bytes.current", 0) for name in ("allocated", "reserved", "active")}
    return {**sizes, "resident": psutil.Process().memory_info().rss}


def release(step) -> None:
    """Let go of everything that the step holds, for the next run in this process."""
    for tensors in held_tensors(step).values():  # stage 3's engine is kept by its own caches and hooks
        for tensor in tensors:
            with suppress(RuntimeError):  # a storage that is not its own
                tensor.untyped_storage().resize_(0)
    if hasattr(step.model, "destroy"):
        step.model.destroy()
    step.__dict__.clear()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
