"""The operators of a run's forward and backward, from its symbolic step, and the seconds that each takes the GPU."""

from __future__ import annotations

from functools import lru_cache

from labs_utils.device import Device
from labs_utils.memory_model.llama_step import SymbolicStep
from labs_utils.memory_model.tape import Work
from labs_utils.precision import FP32_BYTES, precision_of
from labs_utils.run import Run
from labs_utils.time_model import subjects
from labs_utils.time_model.rates import DeviceRates

PRODUCTS = ("mm", "bmm", "liger_loss")
PHASES = ("forward", "recompute", "backward")
# Bytes read and written for each byte that an operator writes; 2, if it isn't here.
PASSES = {
    "add": 3, "mul": 2.5, "silu_backward": 3, "softmax_backward": 6, "div": 1, "embedding_backward": 1, "expand": 1.5,
    "cublas": 0, "mask": 1, "pad": 0, "ones_like": 0,
}  # fmt: skip
REDUCING = ("mean", "sum")  # they read what the operator before them wrote


def plain_step(run: Run, device: Device) -> tuple[list[Work], int]:
    """The operators of a micro-batch's forward and backward on one GPU, in order, and the bytes kept on the host."""
    plain = {"engine": "torch", "zero_stage": 0, "world_size": 1, "offload": "none", "zero": {}, "grad_accum": 1}
    return run_once(run.model_copy(update={**plain, "optimizer": "none"}).model_dump_json(), device)


@lru_cache(maxsize=8)
def run_once(run: str, device: Device) -> tuple[list[Work], int]:
    """What `plain_step` returns, of a plain run as JSON: runs that differ in their engine alone share it."""
    step = SymbolicStep(Run.model_validate_json(run), device)
    step()
    kept = (event.change_bytes for event in step.tape.timeline.host_events)
    return [work for work in step.tape.work if work.phase in PHASES], sum(size for size in kept if size > 0)


def device_seconds(work: Work, previous_nbytes: int, run: Run, rates: DeviceRates) -> float:
    """What one operator takes the GPU."""
    if work.flops and work.operator in PRODUCTS:
        seconds = rates.product_seconds(work.flops, number_name(run, work.itemsize))
        return max(seconds, rates.pass_seconds(work.nbytes))
    if work.flops:
        kernel, _, part = work.operator.partition("_")
        sizes = (run.seq_len, run.model.head_dim)
        return rates.attention_seconds(work.flops, kernel, part or "forward", *sizes)
    read = previous_nbytes if work.operator in REDUCING else 0
    nbytes = read + work.nbytes * passes(work)
    return rates.pass_seconds(nbytes, timed_as(work.operator))


def timed_as(operator: str) -> str:
    """The operator in `subjects.PASSES` that is as fast.

    >>> timed_as("add"), timed_as("silu")
    ('add', 'mul')
    """
    operator = {"softmax": "log_softmax"}.get(operator, operator)
    return operator if operator in subjects.PASSES else "mul"


def passes(work: Work) -> float:
    """Bytes read and written for each byte written; casts read the other type.

    >>> passes(Work("forward", "silu", nbytes=8, itemsize=2, flops=0))
    2
    """
    if work.operator == "to":
        return 1.5 if work.itemsize == 4 else 3
    return PASSES.get(work.operator, 2)


def number_name(run: Run, itemsize: int) -> str:
    """The type of numbers of so many bytes in a run: "fp32", or the run's 16-bit type.

    >>> number_name(Run(precision="fp16-mixed"), 2)
    'fp16'
    """
    if itemsize == FP32_BYTES:
        return "fp32"
    numbers = precision_of(run)
    return (numbers.autocast if numbers.autocast.bytes else numbers.weight).name
