"""What DeepSpeed holds and sends on one rank of many, without the others: the real engine, a silent group.

Which bytes a rank holds and hands to collectives doesn't depend on what its peers answer, so a group that answers
nothing (`torch.testing`'s "fake" backend) will do, and one process takes the place of hundreds.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from functools import cache
from json import dumps, loads
from types import SimpleNamespace

import torch

from labs_utils.profiling.collectives import CommunicationCounter
from labs_utils.profiling.deepspeed_tensors import held_tensors, host_tensors
from labs_utils.profiling.step_clock import StepClock

KINDS = ("parameters", "gradients", "master_weights", "moments")
RING_PASSES = {"all_reduce": 2, "reduce_scatter": 1, "all_gather": 1}


def lone_rank(
    numels: list[int], stage: int, world_size: int, grad_accum: int = 2, offload: str = "none"
) -> dict[str, dict[str, int]]:
    """Rank 0 of a second step in bf16 over fp32 master weights, with parameters of `numels` elements.

    Nothing is gathered at stage 3 ahead of its use or kept after it.

    Returns:
        "held": bytes by kind (`KINDS`) after the first micro-step, without counters; "communicated": bytes by
        collective in the whole step, of the tensor that all ranks have together; "moved": bytes to the host and
        back in the whole step (`labs_utils.profiling.step_clock`), which are none unless `offload` is "optimizer".
    """
    case = {"numels": numels, "stage": stage, "world_size": world_size, "grad_accum": grad_accum, "offload": offload}
    return loads(ask_deepspeed(dumps(case)))


def ring_bytes(communicated: dict[str, int], world_size: int) -> int:
    """Bytes that a rank sends if all collectives are rings (arXiv 1910.02054, section 7).

    >>> ring_bytes({"reduce_scatter": 1000, "all_gather": 1000}, world_size=4)
    1500
    """
    passes = sum(RING_PASSES[name] * nbytes for name, nbytes in communicated.items())
    return passes * (world_size - 1) // world_size


@cache
def ask_deepspeed(case: str) -> str:
    """A line of JSON for a line of JSON, from the process of DeepSpeed.

    Raises:
        RuntimeError: one sentence, where that process has ended.
    """
    process, line = rank_process(), ""
    try:
        process.stdin.write(f"{case}\n")
        process.stdin.flush()
        line = process.stdout.readline()
    except BrokenPipeError:
        pass
    finally:
        if not line:  # interrupted, or ended: whoever asks next must not read this answer
            process.kill()
            rank_process.cache_clear()
    if not line:
        raise RuntimeError("the process that asks DeepSpeed has ended: does `import deepspeed` work here?")
    return line


@cache
def rank_process() -> subprocess.Popen:
    """One process, kept for all questions: it is DeepSpeed's, so that nothing of it changes this one."""
    command = [sys.executable, "-m", "labs_utils.workers.silent_peers"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.Popen(command, **pipes, text=True, env=environment)


def serve() -> None:
    """Answer lines until there are no more; DeepSpeed says nothing in between, finds no GPU, and compiles nothing.

    Its Muon is compiled on import, which would load all of torch's compiler: two seconds.
    """
    os.environ.update(DS_ACCELERATOR="cpu", CUDA_VISIBLE_DEVICES="", TORCHDYNAMO_DISABLE="1")
    with os.fdopen(os.dup(1), "w", buffering=1) as answers:
        os.dup2(2, 1)
        torch.set_num_threads(1)
        for case in sys.stdin:
            answers.write(f"{answer(case)}\n")
            spare_what_is_there()


def spare_what_is_there() -> None:
    """Spare all modules the search for garbage, which DeepSpeed makes for each engine: half a second each time.

    It imports some of them only when it builds its first engine of a stage.
    """
    gc.collect()
    gc.freeze()


def answer(case: str) -> str:
    """`lone_rank` in the process of DeepSpeed."""
    case = loads(case)
    start_silent_group(case["world_size"])
    try:
        return dumps(second_step(build(case), case["grad_accum"]))
    finally:
        torch.distributed.destroy_process_group()


def start_silent_group(world_size: int) -> None:
    """Make this process rank 0 of a group in which nobody answers, for torch and for DeepSpeed."""
    import deepspeed
    from torch.testing._internal.distributed.fake_pg import FakeStore

    forget_groups()
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE=str(world_size), MASTER_ADDR="localhost", MASTER_PORT="0")
    torch.distributed.init_process_group("fake", rank=0, world_size=world_size, store=FakeStore())
    deepspeed.comm.comm.cdb = None
    deepspeed.init_distributed("fake", verbose=False, auto_mpi_discovery=False)


def forget_groups() -> None:
    """DeepSpeed keeps its groups in a module for the life of a process: as they were when it was imported."""
    from deepspeed.utils import groups

    for name, value in fresh_groups().items():
        setattr(groups, name, value.copy() if isinstance(value, dict) else value)


@cache
def fresh_groups() -> dict:
    """DeepSpeed's variables for groups, by name, as they are before it has any."""
    from deepspeed.utils import groups

    kept = {name: value for name, value in vars(groups).items() if name.startswith("_") and name[1] != "_"}
    return {name: value for name, value in kept.items() if value is None or isinstance(value, (dict, int))}


class Weight(torch.nn.Module):
    """One bf16 parameter; its share of the loss is the sum of its numbers, which is quick on a CPU in bf16 too."""

    def __init__(self, numel: int):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(numel, dtype=torch.bfloat16))

    def forward(self, loss: torch.Tensor) -> torch.Tensor:
        return loss + self.weight.sum()


def build(case: dict) -> SimpleNamespace:
    """An engine in the form that `held_tensors` takes."""
    import deepspeed

    model = torch.nn.Sequential(*map(Weight, case["numels"]))
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    engine, zero_optimizer, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings(case))
    run = SimpleNamespace(offload=case["offload"])
    return SimpleNamespace(model=engine, zero_optimizer=zero_optimizer, optimizer=engine.basic_optimizer, run=run)


def settings(case: dict) -> dict:
    """DeepSpeed's settings: bf16, one bucket for all gradients, and nothing gathered ahead or kept at stage 3."""
    zero = {
        "stage": case["stage"],
        "reduce_bucket_size": sum(case["numels"]),
        "stage3_param_persistence_threshold": 0,
        "stage3_max_reuse_distance": 0,
        "stage3_prefetch_bucket_size": 0,
    }
    if case["offload"] == "optimizer":
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": False}
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": case["grad_accum"],
        "bf16": {"enabled": True},
        "gradient_clipping": 0.0,
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 2**31,
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": zero,
    }


def second_step(step: SimpleNamespace, grad_accum: int) -> dict:
    """Two steps; what was held and communicated in the second."""
    counter, held = CommunicationCounter(), {}
    for _ in range(grad_accum):
        micro_step(step)
    clock = StepClock(torch.device("cpu"), host_tensors(step))
    with counter, clock:
        micro_step(step, held)
        for _ in range(grad_accum - 1):
            micro_step(step)
    communicated = {name: counter.counts[name]["bytes"] for name in RING_PASSES if name in counter.counts}
    return {"held": held, "communicated": communicated, "moved": clock.moved_bytes()}


def micro_step(step: SimpleNamespace, held: dict | None = None) -> None:
    """Forward and backward, and an update if the engine finds it due; `held` is filled between the two."""
    step.model.backward(step.model(torch.zeros((), dtype=torch.bfloat16)))
    if held is not None:
        kept = held_tensors(step)
        held.update({kind: sum(t.untyped_storage().nbytes() for t in kept[kind] if t.dim()) for kind in KINDS})
    step.model.step()


if __name__ == "__main__":
    serve()
