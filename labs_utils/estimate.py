"""`estimate`: a run's memory and time from a training step written out in sizes; needs neither torch nor a GPU."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from labs_utils.answer import Answer
from labs_utils.device import Device, find_device
from labs_utils.run import Run
from labs_utils.step_time import step_seconds
from labs_utils.symbolic_llama import SymbolicStep
from labs_utils.symbolic_ranks import distributed_step, telling_ranks, why_not_covered
from labs_utils.timeline import Timeline
from labs_utils.zero_config import why_not_distributed, why_not_plain

GIB = 2**30


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """A step's many objects go by reference counts; looking for cycles among them all the time takes a third of it."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@no_garbage_collection()
def estimate(run: Run, device: Device | str | None = None) -> Answer:
    """What the run needs on a device (a `Device`, a name in `data/gpus.csv`, or None: this machine).

    Returns:
        An `Answer` with `peak_bytes`, `phase` and `parts`, or with the outcome "unsupported" and the reason. On a GPU
        that the run fits, also `step_seconds`, the sum of `provenance["step_seconds_terms"]` (`labs_utils.step_time`).

    Raises:
        DeviceError: for a name that isn't known.
    """
    device = device if isinstance(device, Device) else find_device(device)
    reason = why_unsupported(run, device)
    if reason:
        return Answer.unsupported(run, "estimate", device.name, reason)
    return with_step_seconds(read_off(estimate_timeline(run, device), run, "estimate", device), device)


def with_step_seconds(answer: Answer, device: Device) -> Answer:
    """The answer with the seconds of a step, where they are known, and their terms."""
    terms = step_seconds(answer.run, device) if answer.outcome == "ok" else None
    if terms is None:
        return answer
    provenance = {**answer.provenance, "step_seconds_terms": terms}
    return answer.model_copy(update={"step_seconds": sum(terms.values()), "provenance": provenance})


def estimate_timeline(run: Run, device: Device) -> Timeline:
    """Every storage of a warm step and of the step after it; phases as in `labs_utils.answer.PHASES`.

    Of several ranks it is that of the one with the largest peak.
    """
    if run.engine == "torch":
        return step_timeline(SymbolicStep(run, device))
    timelines = (step_timeline(distributed_step(run, device, rank)) for rank in telling_ranks(run, device))
    return max(timelines, key=lambda timeline: timeline.peak().live_bytes)


def step_timeline(step: SymbolicStep) -> Timeline:
    """Every storage of a warm step and of the step after it; at stage 3 that is another one, by an order now known."""
    step("warm ")
    if step.run.zero_stage == 3:
        step()
    else:
        step.tape.timeline.repeat("warm ", next(step.tape.identities))
    step.tape.phase = "after"
    return step.tape.timeline


def read_off(timeline: Timeline, run: Run, method: str, device: Device) -> Answer:
    """The answer in a timeline: on a GPU in the allocator's blocks, on a CPU in the tensors' own bytes."""
    found, tensors = {}, timeline
    if device.is_gpu:
        timeline, found["reserved_bytes"] = timeline.in_blocks()
    if timeline.host_events:
        found["host_bytes"] = timeline.host_peak_bytes(pinned=device.is_gpu)
    peak = timeline.peak()
    found["phase_peak_bytes"] = timeline.phase_peak_bytes()
    reason = why_out_of_memory(tensors, peak.live_bytes, found.get("reserved_bytes", 0), device)
    if reason:
        found["reason"] = reason
    return Answer(
        run=run,
        method=method,
        device=device.name,
        outcome="out of memory" if reason else "ok",
        peak_bytes=peak.live_bytes,
        phase=peak.event.phase,
        parts=peak.parts,
        provenance={**found, "operator": peak.event.operator},
    )


def why_out_of_memory(tensors: Timeline, peak_bytes: int, reserved_bytes: int, device: Device) -> str | None:
    """Why the device's memory isn't enough; None if it is, or isn't known.

    Free blocks may be too short for the tensor that comes: that is found by playing the allocator with that limit.
    """
    if device.memory_bytes is None:
        return None
    if peak_bytes > device.memory_bytes:
        return f"the peak is above the {device.memory_bytes / GIB:.1f} GiB of {device.name}"
    limit_bytes = device.allocator_bytes
    if limit_bytes is None or reserved_bytes <= limit_bytes or tensors.fits_in(limit_bytes):
        return None
    if (most_bytes := tensors.most_bytes()) > max(limit_bytes, peak_bytes):
        return f"a step takes {peak_bytes / GIB:.1f} GiB, but setting up takes {most_bytes / GIB:.1f} on {device.name}"
    return f"the peak is {peak_bytes / GIB:.1f} GiB, but in {device.name}'s memory its blocks would be too fragmented"


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
