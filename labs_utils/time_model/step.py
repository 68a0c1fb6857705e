"""`step_seconds`: how long a step takes on a GPU, from what its operators read, write and multiply.

The symbolic step names every operator with its sizes; recorded rates say how long each takes the GPU. `Clock` simulates
both sides: the host launches operators one by one, and the GPU runs what was launched, or waits for the host. So the
terms sum up: the GPU computes, moves bytes, updates weights, communicates, copies, or waits ("host").

Constants are benchmarks (`rates`); none is fitted to training runs that estimates are compared with.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache, partial
from typing import NamedTuple

from labs_utils.device import Device
from labs_utils.memory_model.tape import Work
from labs_utils.precision import precision_of
from labs_utils.run import Run
from labs_utils.time_model.engines import Collective, EngineWork, engine_work
from labs_utils.time_model.launches import engine_host_seconds, host_per_operator
from labs_utils.time_model.offload import offload_seconds, recorded_host_rates
from labs_utils.time_model.operators import device_seconds, plain_step
from labs_utils.time_model.rates import DeviceRates, MissingRate, rates_of
from labs_utils.time_model.subjects import TO_DEVICE, TO_HOST
from labs_utils.zero_settings import OFFLOADS, pins_memory

TERMS = ("compute", "memory", "optimizer", "communication", "copies", "host")


class Task(NamedTuple):
    """What the host launches in `host` seconds, and the GPU does in `device` seconds, for one of `TERMS`."""

    term: str
    host: float
    device: float


def step_seconds(run: Run, device: Device, threads: int | None = None) -> dict[str, float] | None:
    """The seconds of one optimizer step on one of the run's ranks by term, which sum to all of it; None if unknown.

    `threads` are those of a rank that offloads its optimizer; None: the most that were recorded, 16 for one H200 alone
    and for each of two, which shared their host. More ranks are taken to work at the rates of two.
    """
    rates = rates_of(device)
    if rates is None:
        return None
    try:
        return simulate(run, rates) if run.offload == "none" else simulate_with_offload(run, rates, threads)
    except MissingRate:
        return None


def simulate_with_offload(run: Run, rates: DeviceRates, threads: int | None) -> dict[str, float] | None:
    """The step without offload, but for the GPU's update; then the host's Adam and the copies, while the GPU waits."""
    host = recorded_host_rates(rates.device, threads, pins_memory(run), run.world_size)
    added = offload_seconds(run, host) if host else None
    if added is None:
        return None
    zero = {key: value for key, value in run.zero.items() if key not in OFFLOADS}
    terms = simulate(run.model_copy(update={"offload": "none", "zero": zero}), rates)
    copies = added["gradient_transfer"] + added["parameter_transfer"]
    on_host = added["clipping"] + added["cpu_adam"] + added["rounding"]
    return terms | {"optimizer": on_host, "copies": terms["copies"] + copies}


def simulate(run: Run, rates: DeviceRates) -> dict[str, float]:
    """A step from its first operator to its last."""
    engine, (work, host_bytes) = engine_work(run), plain_step(run, rates.device)
    clock, micro = Clock(), list(micro_step(run, work, engine, rates))
    clock.play(micro)
    clock.repeat(micro, run.grad_accum - 1)
    if engine.waits:
        clock.wait()
    clock.add("communication", exposed_seconds(run, engine, clock.elapsed, rates))
    clock.play(optimizer_step(run, engine, rates))
    clock.add("copies", run.grad_accum * copies_seconds(host_bytes, rates))
    return clock.terms()


class Clock:
    """A host that launches and a GPU that runs what was launched, in order; both begin at 0."""

    def __init__(self):
        self.host = self.device = 0.0
        self._busy = dict.fromkeys(TERMS, 0.0)

    @property
    def elapsed(self) -> float:
        return max(self.host, self.device)

    def play(self, tasks: Iterable[Task]) -> None:
        for task in tasks:
            self.host += task.host
            self.device = max(self.device, self.host) + task.device
            self._busy[task.term] += task.device

    def repeat(self, tasks: list[Task], times: int) -> None:
        """Play them so many times more: the second time as it goes, further ones in as much time as that."""
        if not times:
            return
        before, busy = (self.host, self.device), dict(self._busy)
        self.play(tasks)
        self.host += (times - 1) * (self.host - before[0])
        self.device += (times - 1) * (self.device - before[1])
        self._busy = {term: now + (times - 1) * (now - busy[term]) for term, now in self._busy.items()}

    def wait(self) -> None:
        """The host reads a number, for which the GPU has to finish."""
        self.host = self.device = self.elapsed

    def add(self, term: str, seconds: float) -> None:
        """Time in which nothing else happens, and for which the host waits too."""
        if not seconds:
            return
        self.host = self.device = self.elapsed + seconds
        self._busy[term] += seconds

    def terms(self) -> dict[str, float]:
        waits = self.elapsed - sum(self._busy.values())
        return self._busy | {"host": max(0.0, waits)}


def micro_step(run: Run, work: list[Work], engine: EngineWork, rates: DeviceRates) -> Iterator[Task]:
    """Forward and backward of a micro-batch, with what the engine does in it."""
    host, previous_nbytes = host_per_operator(run, work, rates), 0
    seconds = cache(partial(device_seconds, run=run, rates=rates))  # layers repeat
    for each in work:
        term = "compute" if each.flops else "memory"
        yield Task(term, host[each.phase], seconds(each, previous_nbytes))
        previous_nbytes = each.nbytes
    yield Task("memory", 0.0, rates.pass_seconds(engine.micro_bytes))
    gradient_bytes = precision_of(run).gradient.bytes * run.model.parameters
    added = 3 * gradient_bytes * (1 - 1 / run.grad_accum)  # but not in the first
    yield Task("memory", 0.0, rates.pass_seconds(added, "add"))
    yield from collectives(run, engine, rates, each_micro_step=True)


def collectives(run: Run, engine: EngineWork, rates: DeviceRates, each_micro_step: bool) -> Iterator[Task]:
    """Those for which everything else waits."""
    for each in engine.collectives:
        if each.each_micro_step == each_micro_step and not each.beside:
            yield Task("communication", 0.0, collective_seconds(each, run, rates))


def collective_seconds(each: Collective, run: Run, rates: DeviceRates) -> float:
    return rates.collective_seconds(each.name, each.nbytes, run.world_size, each.piece_bytes)


def optimizer_step(run: Run, engine: EngineWork, rates: DeviceRates) -> Iterator[Task]:
    """The engine's passes over gradients and weights, its collectives, and the optimizer itself."""
    host = engine_host_seconds(run, rates)["step"] * run.model.num_hidden_layers
    yield Task("optimizer", host / 2, rates.pass_seconds(engine.step_bytes))
    yield Task("optimizer", host / 2, rates.pass_seconds(engine.norm_bytes, "norm"))
    yield Task("optimizer", 0.0, update_seconds(run, engine, rates))
    yield from collectives(run, engine, rates, each_micro_step=False)


def update_seconds(run: Run, engine: EngineWork, rates: DeviceRates) -> float:
    """The optimizer on the GPU, on the parameters that this rank owns."""
    if run.optimizer == "none":
        return 0.0
    parameters = engine.owned_share * run.model.parameters
    return rates.optimizer_seconds(run.optimizer, precision_of(run).updated.bytes, parameters)


def exposed_seconds(run: Run, engine: EngineWork, elapsed: float, rates: DeviceRates) -> float:
    """What is left of collectives that run beside forward and backward, when these are over."""
    seconds = 0.0
    for each in engine.collectives:
        if each.beside:
            seconds += collective_seconds(each, run, rates) * (run.grad_accum if each.each_micro_step else 1)
    return max(0.0, seconds - elapsed)


def copies_seconds(nbytes: int, rates: DeviceRates) -> float:
    """Checkpointing `offload`: every saved tensor to the host and back, while the GPU waits."""
    return sum(rates.host_copy_seconds(nbytes, way) for way in (TO_HOST, TO_DEVICE))
