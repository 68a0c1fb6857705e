"""Live points: which runs this machine's GPU has room for now, and what it measures of them."""

from __future__ import annotations

from collections.abc import Iterable

from labs_utils.answer import Answer
from labs_utils.answers.estimate import estimate
from labs_utils.answers.host_need import too_large_for_host
from labs_utils.answers.measure import measure_all
from labs_utils.device import CONTEXT_BYTES, Device, this_device
from labs_utils.nvml import ask_driver, free_bytes
from labs_utils.run import LLAMA_1B, LLAMA_8B, LLAMA_125M, ModelShape, Run
from labs_utils.units import worded_bytes

LARGEST_FIRST = (LLAMA_8B, LLAMA_1B, LLAMA_125M)
SPARE_BYTES = 2**30  # for what others take in the meantime


def measure_live(runs: Iterable[Run]) -> list[Answer]:
    """Measure the runs that this machine's GPU has room for, each in its own process; say which are left out and why.

    Returns:
        The answers of the runs that went well: none, and a sentence, on a machine without a GPU.
    """
    if not this_device().is_gpu:
        print("No GPU here: the points that were recorded on an H200 stand for live ones.")
        return []
    tried = [run for run in runs if _has_room(run)]
    answers = list(measure_all(tried))
    for answer in answers:
        if answer.outcome != "ok":
            print(f"{_named(answer.run)} could not be measured: {answer.provenance.get('reason', answer.outcome)}.")
    return [answer for answer in answers if answer.outcome == "ok"]


def live_run(seq_len: int, precision: str = "bf16", largest: ModelShape = LLAMA_8B) -> Run | None:
    """A run of the largest preset, up to `largest`, that this machine's GPU has room for now; None if there is none.

    On a GPU without bf16 its precision is fp16-mixed.
    """
    device = this_device()
    if not device.is_gpu:
        return None
    if "bf16" in precision and not device.has_bf16:
        precision = "fp16-mixed"
    models = LARGEST_FIRST[LARGEST_FIRST.index(largest) :]
    runs = (Run(model=model, seq_len=seq_len, precision=precision) for model in models)
    return next((run for run in runs if why_no_room(run, device) is None), None)


def why_no_room(run: Run, device: Device, gpu_free_bytes: int | None = None) -> str | None:
    """Why a GPU has no room for the run now, in a sentence; None if it has.

    What is needed is what the estimate says that PyTorch will reserve, and CUDA's context. `gpu_free_bytes` is by
    default what the driver says is free.
    """
    answer = estimate(run, device)
    if answer.peak_bytes is None:
        return answer.provenance["reason"]
    needed_bytes = answer.provenance["reserved_bytes"] + CONTEXT_BYTES + SPARE_BYTES
    found_bytes = ask_driver(free_bytes) if gpu_free_bytes is None else gpu_free_bytes
    if found_bytes is not None and needed_bytes > found_bytes:
        return f"it needs {worded_bytes(needed_bytes)}, and {worded_bytes(found_bytes)} of this GPU are free"
    return too_large_for_host(run, device)


def _has_room(run: Run) -> bool:
    if reason := why_no_room(run, this_device()):
        print(f"{_named(run)} is left out: {reason}.")
    return reason is None


def _named(run: Run) -> str:
    return f"{run.model.parameters / 1e9:.2g}B at {run.seq_len:,} tokens in {run.precision}"
