"""A process that measures one run: reads it as JSON from standard input, writes an answer to standard output."""

from __future__ import annotations

import datetime
import json
import os
import sys
import time
from collections.abc import Callable

import torch
import transformers.models.llama.modeling_llama  # noqa: F401  imported before the run is known, to be ready for it

from labs_utils.answer import PHASES, Answer
from labs_utils.device import this_device
from labs_utils.profiling.phase_clock import PhaseClock
from labs_utils.profiling.timing import Spread, timed
from labs_utils.profiling.tracker import MemoryTracker
from labs_utils.run import Run
from labs_utils.training.step import TrainingStep
from labs_utils.training.tracked import watch_optimizer, watch_parts
from labs_utils.versions import driver_version, package_versions
from labs_utils.workers.rank import outcome_of

WARM_STEPS = 2  # the first makes the optimizer's states, the second finds the allocator's blocks
TIMED_STEPS = 5
SETTLING_SECONDS = 0.05  # gloo's threads let go of what they have sent a moment after, else in the next phase
PACKAGES = ("torch", "transformers", "liger-kernel", "flash-attn", "bitsandbytes", "deepspeed")


def main() -> None:
    answers_to = os.dup(1)
    os.dup2(2, 1)  # what libraries print is not an answer
    run = Run.parse(json.load(sys.stdin))
    os.write(answers_to, json.dumps(measured(run).to_dict()).encode())


def measured(run: Run) -> Answer:
    """The answer, or the named outcome of what went wrong."""
    try:
        if torch.cuda.is_available():
            return on_gpu(run, TrainingStep(run, "cuda"))
        return on_cpu(run, TrainingStep(run, "cpu"))
    except (RuntimeError, ImportError, NotImplementedError, KeyError) as error:
        outcome, reason = outcome_of(error)
        return answer(run, outcome, {"reason": reason})


def answer(run: Run, outcome: str, found: dict, **fields) -> Answer:
    fields = {"device": this_device().name, **fields}
    return Answer(run=run, method="measure", outcome=outcome, provenance={**found, **versions()}, **fields)


def on_gpu(run: Run, step: TrainingStep, warm_steps: int = WARM_STEPS, timed_steps: int = TIMED_STEPS) -> Answer:
    """Peaks of `torch.cuda.max_memory_allocated` by phase in a warm step, then the time of `timed_steps` more."""
    for _ in range(warm_steps):
        step()
    clock = PhaseClock(step.device)
    step(clock.begin)
    clock.end()
    reserved_bytes, used_bytes = torch.cuda.max_memory_reserved(), device_used_bytes()
    seconds = Spread.of(timed(step, step.device) for _ in range(timed_steps))
    found = {"phase_seconds": clock.seconds}
    found |= {"phase_peak_bytes": clock.peak_bytes, "reserved_bytes": reserved_bytes, "device_used_bytes": used_bytes}
    if run.checkpointing == "offload":
        found["host_bytes"] = torch.cuda.host_memory_stats()["allocated_bytes.peak"]
    phase = max(PHASES, key=lambda name: clock.peak_bytes[name])
    return answer(
        run,
        "ok",
        {**found, **spread(seconds)},
        peak_bytes=clock.peak_bytes[phase],
        phase=phase,
        step_seconds=seconds.median,
    )


def device_used_bytes() -> int:
    """What the driver counts as used, by everyone on this GPU: nvidia-smi's number."""
    free_bytes, total_bytes = torch.cuda.mem_get_info()
    return total_bytes - free_bytes


def spread(seconds: Spread) -> dict:
    return {"step_seconds_p20": seconds.p20, "step_seconds_p80": seconds.p80}


def on_cpu(
    run: Run,
    step: TrainingStep,
    warm_steps: int = WARM_STEPS,
    watch: Callable[[MemoryTracker], None] = lambda tracker: None,
) -> Answer:
    """The tracker's peak in a warm step, and the time of three more without it.

    `watch` is called as each phase begins and as gradients arrive, to name tensors that only the caller knows.
    """
    tracker = MemoryTracker(run.model.vocab_size, run.tokens)
    for _ in range(warm_steps):
        step()
    watch(tracker)  # first, so that it can say what counts as the host's
    watch_parts(tracker, step)
    watch_optimizer(tracker, step)
    watch(tracker)
    hooks = [parameter.register_hook(lambda gradient: watch(tracker)) for parameter in step.model.parameters()]

    def begin(phase: str) -> None:
        time.sleep(SETTLING_SECONDS if run.engine != "torch" else 0)
        watch(tracker)
        tracker.phase(phase)
        tracker.hold(0, "begin")  # so that a phase in which nothing is made has a peak too

    with tracker:
        step(begin)
    for hook in hooks:
        hook.remove()
    peak = tracker.timeline.peak()
    found = {"phase_peak_bytes": tracker.timeline.phase_peak_bytes()}
    if tracker.timeline.host_events:
        found["host_bytes"] = tracker.timeline.host_peak_bytes()
    seconds = Spread.of(timed(step, step.device) for _ in range(TIMED_STEPS - WARM_STEPS))
    return answer(
        run,
        "ok",
        {**found, **spread(seconds)},
        device="cpu",
        peak_bytes=peak.live_bytes,
        phase=peak.event.phase,
        parts=peak.parts,
        step_seconds=seconds.median,
    )


def versions() -> dict:
    """Packages, driver, date and the command that makes such a line."""
    found = package_versions(PACKAGES)
    found["date"] = datetime.date.today().isoformat()
    found["command"] = "labs measure"
    if torch.cuda.is_available():
        found |= {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "driver": driver_version()}
    return found


if __name__ == "__main__":
    main()
