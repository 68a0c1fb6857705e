"""The host's seconds: what it takes Python, PyTorch and an engine to launch a step's operators one by one.

They come from small steps of a benchmark in which the GPU waits for the host all the time (`subjects.host_runs`): plain
PyTorch's by operator and phase, and what an engine takes more by layer, since its hooks are on modules.
"""

from __future__ import annotations

from collections import Counter
from functools import cache

from labs_utils.device import Device
from labs_utils.memory_model.tape import Work
from labs_utils.run import Run
from labs_utils.time_model.operators import PHASES, plain_step
from labs_utils.time_model.rates import DeviceRates
from labs_utils.time_model.subjects import (
    FORWARD_ALONE,
    FULL_CHECKPOINTING,
    SELECTIVE_CHECKPOINTING,
    TWO_MICRO_STEPS,
    engine_name,
    host_runs,
)


def host_per_operator(run: Run, work: list[Work], rates: DeviceRates) -> dict[str, float]:
    """The host's seconds for an operator of each phase: plain PyTorch's, and the engine's, spread over them."""
    counts, plain, extra = operator_counts(work), plain_host_seconds(run, rates), engine_host_seconds(run, rates)
    recomputed = run.model.num_hidden_layers / max(1, run.checkpoint_every)
    hooks = {
        "forward": extra["micro"] / 2 * run.model.num_hidden_layers,
        "backward": extra["micro"] / 2 * run.model.num_hidden_layers,
        "recompute": extra["recompute"] * recomputed,
    }
    return {phase: plain[phase] + hooks[phase] / max(1, counts[phase]) for phase in PHASES}


def operator_counts(work: list[Work]) -> Counter:
    return Counter(each.phase for each in work)


def plain_host_seconds(run: Run, rates: DeviceRates) -> dict[str, float]:
    """Seconds an operator, from the small steps of plain PyTorch and their operators."""
    forward, small = rates.host_seconds("torch", FORWARD_ALONE), small_steps("torch", rates)
    again = SELECTIVE_CHECKPOINTING if run.checkpointing.startswith("keep-") else FULL_CHECKPOINTING
    recompute = rates.host_seconds("torch", again) - rates.host_seconds("torch")
    return {
        "forward": forward / small_counts("", rates.device)["forward"],
        "backward": max(0.0, small["again"] - forward) / small_counts("", rates.device)["backward"],
        "recompute": max(0.0, recompute) / small_counts(again, rates.device)["recompute"],
    }


@cache
def small_counts(name: str, device: Device) -> Counter:
    """The operators of one of the small steps, by phase."""
    return operator_counts(plain_step(host_runs()[name], device)[0])


def engine_host_seconds(run: Run, rates: DeviceRates) -> dict[str, float]:
    """What an engine takes the host more than plain PyTorch, a layer: in a micro-step, in recomputing; and once a step.

    The engine's whole step is measured best, so that what its second micro-step doesn't explain belongs to the step.
    """
    plain, engine = small_steps("torch", rates), small_steps(engine_name(run.engine, run.zero_stage), rates)
    more = max(0.0, engine["once"] - plain["once"])
    micro = min(more, max(0.0, engine["again"] - plain["again"]))
    seconds = {
        "micro": micro,
        "recompute": max(0.0, engine["recompute"] - plain["recompute"]),
        "step": max(0.0, plain["once"] - plain["again"]) + more - micro,
    }
    return {part: each / host_runs()[""].model.num_hidden_layers for part, each in seconds.items()}


def small_steps(name: str, rates: DeviceRates) -> dict[str, float]:
    """A small step's seconds, those of another micro-step in it, and those of its layers' recomputation."""
    once, twice = (rates.host_seconds(name, variant) for variant in ("", TWO_MICRO_STEPS))
    recompute = 0.0
    if name in ("torch", engine_name("deepspeed", 3)):  # elsewhere nothing hangs on a layer's forward
        recompute = rates.host_seconds(name, FULL_CHECKPOINTING) - once
    return {"once": once, "again": twice - once, "recompute": recompute}
