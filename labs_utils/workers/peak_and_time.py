"""The peak memory and the seconds of a training step that really runs, on a GPU or a CPU: of a run, or of one rank."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable

import torch

from labs_utils.answer import PHASES, Answer
from labs_utils.device import this_device
from labs_utils.profiling.phase_clock import PhaseClock
from labs_utils.profiling.timing import Spread, time_call
from labs_utils.profiling.tracker import MemoryTracker
from labs_utils.run import Run
from labs_utils.timeline import Timeline
from labs_utils.training.step import TrainingStep
from labs_utils.training.tracked import watch_optimizer, watch_parts
from labs_utils.versions import driver_version, package_versions

WARM_STEPS = 2  # the first makes the optimizer's states, the second finds the allocator's blocks
TIMED_STEPS = 5
SETTLING_SECONDS = 0.05  # gloo's threads let go of what they have sent a moment after, else in the next phase
PACKAGES = ("torch", "transformers", "liger-kernel", "flash-attn", "bitsandbytes", "deepspeed")
Watch = Callable[[MemoryTracker], None]


def live_answer(run: Run, outcome: str, provenance: dict, **fields) -> Answer:
    """An answer of `measure`, with the versions of what was run."""
    fields = {"device": this_device().name, **fields}
    return Answer(run=run, method="measure", outcome=outcome, provenance={**provenance, **versions()}, **fields)


def measure_on_gpu(step: TrainingStep, warm_steps: int = WARM_STEPS, timed_steps: int = TIMED_STEPS) -> Answer:
    """Peaks of `torch.cuda.max_memory_allocated` by phase in a warm step, then the time of `timed_steps` more."""
    for _ in range(warm_steps):
        step()
    clock = PhaseClock(step.device)
    step(clock.begin)
    clock.end()
    provenance = {"phase_seconds": clock.seconds, "phase_peak_bytes": clock.peak_bytes, **memory_of_gpu()}
    if step.run.checkpointing == "offload":
        provenance["host_bytes"] = torch.cuda.host_memory_stats()["allocated_bytes.peak"]
    seconds = time_steps(step, timed_steps)
    phase = max(PHASES, key=lambda name: clock.peak_bytes[name])
    return live_answer(
        step.run,
        "ok",
        {**provenance, **spread_of_steps(seconds)},
        peak_bytes=clock.peak_bytes[phase],
        phase=phase,
        step_seconds=seconds.median,
    )


def memory_of_gpu() -> dict[str, int]:
    """Bytes that PyTorch's allocator has reserved, and those that the driver counts as used, by everyone."""
    free_bytes, total_bytes = torch.cuda.mem_get_info()
    return {"reserved_bytes": torch.cuda.max_memory_reserved(), "device_used_bytes": total_bytes - free_bytes}


def time_steps(step: TrainingStep, count: int) -> Spread:
    """Seconds a step, over so many."""
    return Spread.of(time_call(step, step.device) for _ in range(count))


def spread_of_steps(seconds: Spread) -> dict[str, float]:
    """The names of a spread in an answer's provenance."""
    return {"step_seconds_p20": seconds.p20, "step_seconds_p80": seconds.p80}


def measure_on_cpu(step: TrainingStep, warm_steps: int = WARM_STEPS, watch: Watch = lambda tracker: None) -> Answer:
    """The tracker's peak in a warm step, and the time of three more without it.

    `watch` is called as each phase begins and as gradients arrive, to name tensors that only the caller knows.
    """
    for _ in range(warm_steps):
        step()
    timeline = tracked_step(step, watch)
    peak = timeline.peak()
    provenance = {"phase_peak_bytes": timeline.phase_peak_bytes()}
    if timeline.host_events:
        provenance["host_bytes"] = timeline.host_peak_bytes()
    seconds = time_steps(step, TIMED_STEPS - WARM_STEPS)
    return live_answer(
        step.run,
        "ok",
        {**provenance, **spread_of_steps(seconds)},
        device="cpu",
        peak_bytes=peak.live_bytes,
        phase=peak.event.phase,
        parts=peak.parts,
        step_seconds=seconds.median,
    )


def tracked_step(step: TrainingStep, watch: Watch) -> Timeline:
    """Every storage of one step, as it comes and as it goes."""
    tracker = MemoryTracker(step.run.model.vocab_size, step.run.tokens)
    watch(tracker)  # first, so that it can say what counts as the host's
    watch_parts(tracker, step)
    watch_optimizer(tracker, step)
    watch(tracker)
    hooks = [parameter.register_hook(lambda gradient: watch(tracker)) for parameter in step.model.parameters()]

    def begin(phase: str) -> None:
        time.sleep(SETTLING_SECONDS if step.run.engine != "torch" else 0)
        watch(tracker)
        tracker.phase(phase)
        tracker.hold(0, "begin")  # so that a phase in which nothing is made has a peak too

    with tracker:
        step(begin)
    for hook in hooks:
        hook.remove()
    return tracker.timeline


def versions() -> dict[str, str]:
    """Packages, driver, date and the command that makes such a line."""
    known = package_versions(PACKAGES) | {"date": datetime.date.today().isoformat(), "command": "labs measure"}
    if torch.cuda.is_available():
        known |= {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "driver": driver_version()}
    return known
