"""`too_large_for_host`: whether the host has the memory that a run needs, said before the run is started."""

from __future__ import annotations

from bisect import bisect_left

import psutil

from labs_utils.answer import Answer
from labs_utils.answers.estimate import estimate
from labs_utils.device import Device
from labs_utils.memory_model.host_memory import bytes_of_states, left_pinned_bytes, offloaded_bytes
from labs_utils.precision import FP32_BYTES
from labs_utils.run import Run
from labs_utils.units import gib

PROCESS_BYTES = 500 * 10**6  # Python, torch, transformers and DeepSpeed, without a model


def too_large_for_host(run: Run, device: Device) -> str | None:
    """Why the free memory of this host isn't enough for the run on its CPU or its GPUs; None if it is."""
    needed_bytes, free_bytes = host_need_bytes(run, device), psutil.virtual_memory().available
    if needed_bytes < free_bytes:
        return None
    sizes = f"{gib(needed_bytes)} GiB of host memory, and {gib(free_bytes)} GiB are free"
    return f"the run needs {sizes}; it was not started{what_would_fit(run, device, free_bytes)}"


def what_would_fit(run: Run, device: Device, free_bytes: int) -> str:
    """For a run that offloads, how many layers of its model would."""
    if run.offload == "none":
        return ""
    layers, shape = run.model.num_hidden_layers, run.model.model_dump()

    def with_layers(count: int) -> Run:
        return run.replace(model={**shape, "num_hidden_layers": count})

    fitting = bisect_left(range(1, layers), free_bytes, key=lambda count: host_need_bytes(with_layers(count), device))
    if not fitting:
        return "; not even one of its layers would fit: take a narrower model, fewer tokens or fewer ranks"
    billions = with_layers(fitting).model.parameters / 1e9
    return f"; with {fitting} of its {layers} layers, {billions:.2g} billion parameters, it would fit"


def host_need_bytes(run: Run, device: Device) -> int:
    """What all of a run's ranks need of the host: on GPUs what is offloaded, on a CPU everything.

    It is what `estimate` says; of a run that isn't estimated, what its states take.
    """
    guess = estimate(run, device)
    offloaded = guess.provenance.get("host_bytes", 0)
    if device.is_gpu:
        if guess.peak_bytes is None and run.offload != "none":
            offloaded = offloaded_bytes(run)
        return run.world_size * (offloaded + left_pinned_bytes(run))
    processes = 0 if run.engine == "torch" else run.world_size * PROCESS_BYTES
    if guess.peak_bytes is None:
        return processes + bytes_of_states(run)
    return processes + run.world_size * (offloaded + filled_bytes(guess))


def filled_bytes(guess: Answer) -> int:
    """The estimated peak, but of the buckets no more than all gradients together can fill."""
    empty = max(0, (guess.parts or {}).get("buffers", 0) - FP32_BYTES * guess.run.model.parameters)
    return guess.peak_bytes - empty
