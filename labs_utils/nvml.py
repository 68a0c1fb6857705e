"""What NVIDIA's driver says about this machine, through its library NVML: no torch, and no process to start."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import NamedTuple, TypeVar

Reply = TypeVar("Reply")


class Gpu(NamedTuple):
    """A GPU as the driver names it. `memory_bytes` is None where the GPU shares the host's memory."""

    name: str
    memory_bytes: int | None
    compute_capability: float


def ask_driver(question: Callable[[ModuleType], Reply]) -> Reply | None:
    """What `question(pynvml)` returns; None where there is no driver, no package `nvidia-ml-py`, or no such GPU."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        try:
            return question(pynvml)
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return None


def first_gpu(nvml: ModuleType) -> Gpu:
    """A question for `ask_driver`: the first GPU of this machine."""
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    return Gpu(nvml.nvmlDeviceGetName(handle), memory_bytes(nvml, handle), float(f"{major}.{minor}"))


def memory_bytes(nvml: ModuleType, handle) -> int | None:
    """The GPU's whole memory in bytes; None where it has none of its own."""
    try:
        return nvml.nvmlDeviceGetMemoryInfo(handle).total
    except nvml.NVMLError_NotSupported:
        return None


def free_bytes(nvml: ModuleType, gpus: int = 1) -> int | None:
    """A question for `ask_driver`: what is free on the fullest of the first GPUs; None where one has no own memory."""
    try:
        handles = map(nvml.nvmlDeviceGetHandleByIndex, range(gpus))
        return min(nvml.nvmlDeviceGetMemoryInfo(handle).free for handle in handles)
    except nvml.NVMLError_NotSupported:
        return None
