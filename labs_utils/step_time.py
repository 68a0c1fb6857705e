"""`step_seconds`: how long a step takes on a GPU, from what its operators read, write and multiply.

The symbolic step names every operator with its sizes; measured rates say what each takes the GPU. The host, which
launches operators one by one, is played against the GPU, which runs them one by one and waits where there is none. So
the terms sum up: the GPU computes, moves bytes, updates weights, communicates, or waits ("host").

Constants are benchmarks (`labs_utils.device_rates`); none is fitted to training runs that estimates are compared with.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from typing import NamedTuple

from labs_utils.device import Device
from labs_utils.device_rates import DeviceRates, MissingRate, rates_of
from labs_utils.engine_time import Collective, EngineWork, engine_work
from labs_utils.run import Run
from labs_utils.step_rates import host_runs
from labs_utils.symbolic import Work
from labs_utils.symbolic_llama import WEIGHT_BYTES, SymbolicStep

TERMS = ("compute", "memory", "optimizer", "communication", "copies", "host")
PRODUCTS = ("mm", "bmm", "liger_loss")
PHASES = ("forward", "recompute", "backward")
# Bytes read and written for each byte that an operator writes; 2, if it isn't here.
PASSES = {
    "add": 3, "mul": 2.5, "silu_backward": 3, "softmax_backward": 6, "div": 1, "embedding_backward": 1, "expand": 1.5,
    "foreach_sqrt": 0, "cublas": 0, "mask": 1, "pad": 0, "ones_like": 0,
}  # fmt: skip
REDUCING = ("mean", "sum")  # they read what the operator before them wrote
SUBJECT = {
    "add": "add bf16", "to": "to fp32 from bf16", "mean": "mean of rows fp32", "sum": "sum of columns bf16",
    "clone": "clone into order bf16", "log_softmax": "log_softmax fp32", "softmax": "log_softmax fp32",
}  # fmt: skip


class Task(NamedTuple):
    """What the host launches in `host` seconds, and the GPU does in `device` seconds, for one of `TERMS`."""

    term: str
    host: float
    device: float


def step_seconds(run: Run, device: Device) -> dict[str, float] | None:
    """The seconds of one optimizer step on one of the run's ranks by term, which sum to all of it; None if unknown."""
    rates = rates_of(device)
    if rates is None or run.offload != "none":
        return None
    try:
        return played(run, rates)
    except MissingRate:
        return None


def played(run: Run, rates: DeviceRates) -> dict[str, float]:
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
        """Time in which nothing else happens."""
        self.host = self.device = self.elapsed + seconds
        self._busy[term] += seconds

    def terms(self) -> dict[str, float]:
        waits = self.elapsed - sum(self._busy.values())
        return self._busy | {"host": max(0.0, waits)}


def micro_step(run: Run, work: list[Work], engine: EngineWork, rates: DeviceRates) -> Iterator[Task]:
    """Forward and backward of a micro-batch, with what the engine does in it."""
    host, previous_nbytes = host_per_operator(run, work, rates), 0
    for each in work:
        term = "compute" if each.flops else "memory"
        yield Task(term, host[each.phase], device_seconds(each, previous_nbytes, run, rates))
        previous_nbytes = each.nbytes
    yield Task("memory", 0.0, rates.pass_seconds(engine.micro_bytes))
    added = 3 * WEIGHT_BYTES[run.precision] * run.model.parameters * (1 - 1 / run.grad_accum)  # but not in the first
    yield Task("memory", 0.0, rates.pass_seconds(added, "add bf16"))
    yield from collectives(run, engine, rates, each_micro_step=True)


def collectives(run: Run, engine: EngineWork, rates: DeviceRates, each_micro_step: bool) -> Iterator[Task]:
    """Those for which everything else waits."""
    for each in engine.collectives:
        if each.each_micro_step == each_micro_step and not each.beside:
            yield Task("communication", 0.0, collective_seconds(each, run, rates))


def collective_seconds(each: Collective, run: Run, rates: DeviceRates) -> float:
    return rates.collective_seconds(each.name, each.nbytes, run.world_size, each.piece_bytes)


def plain_step(run: Run, device: Device) -> tuple[list[Work], int]:
    """The operators of a micro-batch's forward and backward on one GPU, in order, and the bytes kept on the host."""
    plain = {"engine": "torch", "zero_stage": 0, "world_size": 1, "offload": "none", "zero": {}, "grad_accum": 1}
    step = SymbolicStep(run.model_copy(update={**plain, "optimizer": "none"}), device)
    step()
    kept = (event.change_bytes for event in step.tape.timeline.host_events)
    return [work for work in step.tape.work if work.phase in PHASES], sum(size for size in kept if size > 0)


def device_seconds(work: Work, previous_nbytes: int, run: Run, rates: DeviceRates) -> float:
    """What one operator takes the GPU."""
    if work.flops and work.operator in PRODUCTS:
        seconds = rates.product_seconds(work.flops, number_kind(run, work.itemsize))
        return max(seconds, rates.pass_seconds(work.nbytes))
    if work.flops:
        kernel, _, part = work.operator.partition("_")
        sizes = (run.seq_len, run.model.head_dim)
        return rates.attention_seconds(work.flops, kernel, part or "forward", *sizes)
    read = previous_nbytes if work.operator in REDUCING else 0
    nbytes = read + work.nbytes * passes(work)
    return rates.pass_seconds(nbytes, SUBJECT.get(work.operator, "mul fp32"))


def passes(work: Work) -> float:
    """Bytes read and written for each byte written; casts read the other type."""
    if work.operator == "to":
        return 1.5 if work.itemsize == 4 else 3
    return PASSES.get(work.operator, 2)


def number_kind(run: Run, itemsize: int) -> str:
    if itemsize == 4:
        return "fp32"
    return "fp16" if run.precision.startswith("fp16") else "bf16"


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
    forward, small = rates.host_seconds("step of torch, forward alone"), small_steps("torch", rates)
    again = ", selective checkpointing" if run.checkpointing.startswith("keep-") else ", full checkpointing"
    recompute = rates.host_seconds(f"step of torch{again}") - rates.host_seconds("step of torch")
    return {
        "forward": forward / small_counts("", rates.device)["forward"],
        "backward": max(0.0, small["micro"] - forward) / small_counts("", rates.device)["backward"],
        "recompute": max(0.0, recompute) / small_counts(again, rates.device)["recompute"],
    }


@cache
def small_counts(name: str, device: Device) -> Counter:
    """The operators of one of the small steps, by phase."""
    return operator_counts(plain_step(host_runs()[name], device)[0])


def engine_host_seconds(run: Run, rates: DeviceRates) -> dict[str, float]:
    """What an engine takes the host more than plain PyTorch, a layer: in a micro-step, in recomputing, once a step."""
    name = {"torch": "torch", "ddp": "ddp"}.get(run.engine, f"deepspeed stage {run.zero_stage}")
    plain, engine = small_steps("torch", rates), small_steps(name, rates)
    layers = host_runs()[""].model.num_hidden_layers
    extra = {part: max(0.0, engine[part] - plain[part]) / layers for part in ("micro", "recompute")}
    return extra | {"step": max(0.0, engine["step"]) / layers}


def small_steps(name: str, rates: DeviceRates) -> dict[str, float]:
    """A small step's seconds taken apart: another micro-step, checkpointing's recomputation, and the rest."""
    once, twice = (rates.host_seconds(f"step of {name}{what}") for what in ("", ", two micro-steps"))
    recompute = 0.0
    if name in ("torch", "deepspeed stage 3"):  # elsewhere nothing hangs on a layer's forward
        recompute = rates.host_seconds(f"step of {name}, full checkpointing") - once
    return {"micro": twice - once, "step": 2 * once - twice, "recompute": recompute}


def optimizer_step(run: Run, engine: EngineWork, rates: DeviceRates) -> Iterator[Task]:
    """The engine's passes over gradients and weights, its collectives, and the optimizer itself."""
    host = engine_host_seconds(run, rates)["step"] * run.model.num_hidden_layers
    yield Task("optimizer", host / 2, rates.pass_seconds(engine.step_bytes))
    yield Task("optimizer", host / 2, rates.pass_seconds(engine.norm_bytes, "norm fp64 of bf16"))
    yield Task("optimizer", 0.0, update_seconds(run, engine, rates))
    yield from collectives(run, engine, rates, each_micro_step=False)


def update_seconds(run: Run, engine: EngineWork, rates: DeviceRates) -> float:
    """The optimizer on the GPU, on this rank's part of the parameters."""
    if run.optimizer == "none":
        return 0.0
    wide = run.precision.endswith("-master") or WEIGHT_BYTES[run.precision] == 4
    return rates.optimizer_seconds(run.optimizer, 4 if wide else 2, engine.part * run.model.parameters)


def exposed_seconds(run: Run, engine: EngineWork, elapsed: float, rates: DeviceRates) -> float:
    """What is left of collectives that run beside forward and backward, when these are over."""
    seconds = 0.0
    for each in engine.collectives:
        if each.beside:
            seconds += collective_seconds(each, run, rates) * (run.grad_accum if each.each_micro_step else 1)
    return max(0.0, seconds - elapsed)


def copies_seconds(nbytes: int, rates: DeviceRates) -> float:
    """Checkpointing `offload`: every saved tensor to the host and back, while the GPU waits."""
    return sum(rates.host_copy_seconds(nbytes, way) for way in ("device to host", "host to device"))
