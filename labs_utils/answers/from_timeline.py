"""`read_off`: the answer that a timeline holds, whoever made the timeline."""

from __future__ import annotations

from labs_utils.answer import Answer
from labs_utils.device import Device
from labs_utils.run import Run
from labs_utils.timeline import Timeline
from labs_utils.units import gib


def read_off(timeline: Timeline, run: Run, method: str, device: Device) -> Answer:
    """The answer in a timeline: on a GPU in the allocator's blocks, on a CPU in the tensors' own bytes."""
    provenance, tensors = {}, timeline
    if device.is_gpu:
        timeline, provenance["reserved_bytes"] = timeline.in_blocks()
    if timeline.host_events:
        provenance["host_bytes"] = timeline.host_peak_bytes(pinned=device.is_gpu)
    peak = timeline.peak()
    provenance["phase_peak_bytes"] = timeline.phase_peak_bytes()
    reason = why_out_of_memory(tensors, peak.live_bytes, provenance.get("reserved_bytes", 0), device)
    if reason:
        provenance["reason"] = reason
    return Answer(
        run=run,
        method=method,
        device=device.name,
        outcome="out of memory" if reason else "ok",
        peak_bytes=peak.live_bytes,
        phase=peak.event.phase,
        parts=peak.parts,
        provenance={**provenance, "operator": peak.event.operator},
    )


def why_out_of_memory(tensors: Timeline, peak_bytes: int, reserved_bytes: int, device: Device) -> str | None:
    """Why the device's memory isn't enough; None if it is, or isn't known.

    Free blocks may be too short for the tensor that comes: the events are replayed in an allocator with that limit.
    """
    if device.memory_bytes is None:
        return None
    if peak_bytes > device.memory_bytes:
        return f"the peak is above the {gib(device.memory_bytes)} GiB of {device.name}"
    limit_bytes = device.allocator_bytes
    if limit_bytes is None or reserved_bytes <= limit_bytes or tensors.fits_in(limit_bytes):
        return None
    if (most_bytes := tensors.most_bytes()) > max(limit_bytes, peak_bytes):
        return f"a step takes {gib(peak_bytes)} GiB, but setting up takes {gib(most_bytes)} on {device.name}"
    return f"the peak is {gib(peak_bytes)} GiB, but in {device.name}'s memory its blocks would be too fragmented"
