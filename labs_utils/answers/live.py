"""Live points: which runs this machine's GPU has room for now, and what it measures of them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from labs_utils.answer import Answer
from labs_utils.answers.estimate import estimate
from labs_utils.answers.host_need import too_large_for_host
from labs_utils.answers.measure import Settings, measure_all
from labs_utils.answers.measure_ranks import uses_gpus
from labs_utils.device import CONTEXT_BYTES, Device, this_device
from labs_utils.nvml import ask_driver, free_bytes
from labs_utils.run import LLAMA_1B, LLAMA_8B, LLAMA_125M, ModelShape, Run
from labs_utils.units import worded_bytes

LARGEST_FIRST = (LLAMA_8B, LLAMA_1B, LLAMA_125M)
FP16_FOR = {"bf16": "fp16-mixed", "bf16-mixed": "fp16-mixed", "bf16-master": "fp16-master"}
SPARE_BYTES = 2**30  # for what others take in the meantime


def measure_live(runs: Iterable[Run]) -> list[Answer]:
    """Measure the runs that this machine's GPUs have room for; say which are left out and why.

    Each gets its own process; runs of several ranks after one another share a launch.

    Returns:
        The answers of the runs that went well: none, and a sentence, on a machine without a GPU.
    """
    if not this_device().is_gpu:
        print("No GPU here: the points that were recorded on an H200 stand for live ones.")
        return []
    tried = [run for run in runs if _has_room(run)]
    answers = list(measure_all(tried, Settings(together=max(1, len(tried)))))
    for answer in answers:
        if answer.outcome != "ok":
            print(f"{_named(answer.run)} could not be measured: {answer.provenance.get('reason', answer.outcome)}.")
    return [answer for answer in answers if answer.outcome == "ok"]


def live_run(seq_len: int, precision: str = "bf16", largest: ModelShape = LLAMA_8B, **fields: Any) -> Run | None:
    """A run of the largest preset, up to `largest`, that this machine's GPUs have room for now.

    `fields` are further ones of `Run`, such as `zero_stage` and `world_size`: a rank needs a GPU of its own. On a GPU
    without bf16 its precision is the one in fp16.

    Returns:
        The run; None if there is none, with a sentence on a machine that has a GPU.
    """
    device = this_device()
    if not device.is_gpu:
        return None
    if not device.has_bf16:
        precision = FP16_FOR.get(precision, precision)
    models = LARGEST_FIRST[LARGEST_FIRST.index(largest) :]
    runs = [Run(model=model, seq_len=seq_len, precision=precision, **fields) for model in models]
    return next((run for run in runs if why_no_room(run, device) is None), None) or _say_no_room(runs[-1])


def why_no_room(run: Run, device: Device, gpu_free_bytes: int | None = None) -> str | None:
    """Why a GPU has no room for the run now, in a sentence; None if it has.

    What is needed is what the estimate says that PyTorch will reserve, and CUDA's context. `gpu_free_bytes` is by
    default what the driver says is free, on the fullest of as many GPUs as the run has ranks.
    """
    if run.engine != "torch" and not uses_gpus(run):
        return f"it needs a GPU for each of {run.world_size} ranks, and PyTorch finds fewer"
    answer = estimate(run, device)
    if answer.peak_bytes is None:
        return answer.provenance["reason"]
    needed_bytes = answer.provenance["reserved_bytes"] + CONTEXT_BYTES + SPARE_BYTES
    found_bytes = ask_driver(partial(free_bytes, gpus=run.world_size)) if gpu_free_bytes is None else gpu_free_bytes
    if found_bytes is not None and needed_bytes > found_bytes:
        return f"it needs {worded_bytes(needed_bytes)}, and {worded_bytes(found_bytes)} of this GPU are free"
    return too_large_for_host(run, device)


def _has_room(run: Run) -> bool:
    if reason := why_no_room(run, this_device()):
        print(f"{_named(run)} is left out: {reason}.")
    return reason is None


def _say_no_room(run: Run) -> None:
    print(f"This GPU has no room for a live run now. {_named(run)}: {why_no_room(run, this_device())}.")


def _named(run: Run) -> str:
    ranks = "" if run.engine == "torch" else f", stage {run.zero_stage} on {run.world_size} GPU"
    return f"{run.model.parameters / 1e9:.2g}B at {run.seq_len:,} tokens in {run.precision}{ranks}"
