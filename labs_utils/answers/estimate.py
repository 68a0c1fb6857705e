"""`estimate`: a run's memory and time from a training step written out in sizes; needs neither torch nor a GPU."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from labs_utils.answer import Answer
from labs_utils.answers.from_timeline import read_off
from labs_utils.coverage import why_not_estimated
from labs_utils.device import Device, find_device
from labs_utils.memory_model.llama_step import SymbolicStep
from labs_utils.memory_model.ranks import candidate_ranks, distributed_step
from labs_utils.run import Run
from labs_utils.time_model.step import step_seconds
from labs_utils.timeline import Timeline


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
        that the run fits, also `step_seconds`, the sum of `provenance["step_seconds_terms"]`.

    Raises:
        DeviceError: for a name that isn't known.
    """
    device = device if isinstance(device, Device) else find_device(device)
    if reason := why_not_estimated(run, device):
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
    timelines = (step_timeline(distributed_step(run, device, rank)) for rank in candidate_ranks(run, device))
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
