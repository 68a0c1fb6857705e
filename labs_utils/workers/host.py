"""One rank of a measurement of the host: copies to and from its GPU, and Adam on its cores, on all ranks at once.

torchrun --nproc-per-node 2 -m labs_utils.workers.host settings.json
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist

from labs_utils.profiling.timing import time_calls
from labs_utils.time_model.subjects import CPU_ADAM, ROUNDING, SCALING, TO_DEVICE, TO_HOST, transfer
from labs_utils.training.cpu_adam import compiled_cpu_adam, why_no_cpu_adam
from labs_utils.training.distributed import start_links
from labs_utils.workers.rank import Progress, rank_device, serve

COPIED_BYTES = 2**30


def work(argument: dict, progress: Progress) -> list[dict]:
    """Time copies of 1 GiB, and Adam over `argument["parameters"]` with each number of `argument["threads"]`.

    Returns:
        For each `subject`: `threads`, `bytes` or `parameters` handled in a call, and `seconds` (a `Spread`).
    """
    device, count = rank_device(), argument["parameters"]
    adams = {"fused AdamW of PyTorch": lambda given: torch.optim.AdamW(given, lr=1e-6, fused=True)}
    if device.type == "cuda":  # without a GPU it isn't used
        progress("compiling DeepSpeed's CPU Adam, about a minute if it isn't there yet")
        if not why_no_cpu_adam():
            adams[CPU_ADAM] = compiled_cpu_adam
    start_links(device)
    timings = list(copies(device, progress))
    for threads in argument["threads"]:
        set_threads(threads)
        timings += host_work(adams, count, threads, progress)
    return timings


def together(call: Callable[[], object], device) -> dict:
    """Seconds a call on all ranks at once, as a `Spread` in plain data."""
    dist.barrier()
    return time_calls(call, device, repeats=5, budget_seconds=float("inf")).model_dump()


def copies(device: torch.device, progress: Progress) -> Iterator[dict]:
    """Copies of 1 GiB between a GPU and the host, one way and both ways at once; none without a GPU."""
    if device.type != "cuda":
        return
    here = torch.zeros(COPIED_BYTES, dtype=torch.uint8, device=device)
    back = torch.zeros_like(here)
    pageable = torch.zeros(COPIED_BYTES, dtype=torch.uint8)
    pinned, other = pageable.pin_memory(), pageable.clone().pin_memory()
    streams = torch.cuda.Stream(), torch.cuda.Stream()

    def both() -> None:
        with torch.cuda.stream(streams[0]):
            pinned.copy_(here, non_blocking=True)
        with torch.cuda.stream(streams[1]):
            back.copy_(other, non_blocking=True)

    for subject, call in {
        transfer(TO_HOST): lambda: pinned.copy_(here, non_blocking=True),
        transfer(TO_DEVICE): lambda: here.copy_(pinned, non_blocking=True),
        transfer(TO_HOST, pinned=False): lambda: pageable.copy_(here),
        transfer(TO_DEVICE, pinned=False): lambda: here.copy_(pageable),
        "both ways at once, pinned": both,
    }.items():
        progress(subject)
        yield {"subject": subject, "bytes": COPIED_BYTES, "seconds": together(call, device)}


def host_work(adams: dict[str, Callable], count: int, threads: int, progress: Progress) -> Iterator[dict]:
    """Adam, and the passes over gradients and weights that surround it in an offloaded step."""
    master, gradient = torch.zeros(count), torch.full((count,), 1e-3)
    narrow = torch.zeros(count, dtype=torch.bfloat16)
    master.grad = gradient
    calls = {name: make([master]).step for name, make in adams.items()}
    calls[ROUNDING] = lambda: narrow.copy_(master)
    calls[SCALING] = lambda: gradient.mul_(1.0)
    calls["fp32 copied"] = lambda: master.copy_(gradient)
    for subject, call in calls.items():
        progress(f"{subject}, {threads} threads")
        yield {"subject": subject, "threads": threads, "parameters": count, "seconds": together(call, "cpu")}


def set_threads(threads: int) -> None:
    """For PyTorch and for DeepSpeed's operator: each may bring an OpenMP library of its own."""
    torch.set_num_threads(threads)
    try:
        ctypes.CDLL("libgomp.so.1").omp_set_num_threads(threads)
    except OSError:
        pass  # no other library than PyTorch's


if __name__ == "__main__":
    serve(work)
