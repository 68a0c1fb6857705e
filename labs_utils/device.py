"""Devices: rows of `data/gpus.csv`, the CPU, and what this machine has."""

from __future__ import annotations

import csv
import os
from functools import cache
from pathlib import Path

from pydantic import BaseModel, NonNegativeFloat, NonNegativeInt

from labs_utils.nvml import ask_driver, first_gpu
from labs_utils.run import Run

MIB = 2**20
WORKSPACE_BYTES, HOPPER_WORKSPACE_BYTES = 8519680, 32 * MIB  # getChosenWorkspaceSize: 8 MiB and 128 KiB; 32 MiB on 9.x
CONTEXT_BYTES = 750 * MIB  # CUDA's context and kernels, outside the allocator: 751 to 859 MiB, seen on an H200
BF16_CAPABILITY = 8.0  # Ampere. Older GPUs emulate bf16, slowly; `torch.cuda.is_bf16_supported()` says yes to that too
DATA = Path(__file__).resolve().parent.parent / "data"


class DeviceError(ValueError):
    """A device that isn't known; the sentence lists those that are."""


class Device(BaseModel, frozen=True):
    """One kind of accelerator, or a CPU (`workspace_bytes` 0).

    Rates are dense peaks by the vendor's datasheet, in bytes or operations a second; `link_bytes_per_s` is one way
    between GPUs, `host_bytes_per_s` one way to the host. `workspace_bytes` is what PyTorch gives cuBLAS for each thread
    (aten/src/ATen/cuda/CublasHandlePool.cpp, `getChosenWorkspaceSize`).
    """

    name: str
    matches: str = ""
    memory_bytes: NonNegativeInt | None = None
    hbm_bytes_per_s: NonNegativeFloat | None = None
    bf16_flop_per_s: NonNegativeFloat | None = None
    fp16_flop_per_s: NonNegativeFloat | None = None
    fp32_flop_per_s: NonNegativeFloat | None = None
    link_bytes_per_s: NonNegativeFloat | None = None
    host_bytes_per_s: NonNegativeFloat | None = None
    compute_capability: float = 0.0
    multiprocessors: NonNegativeInt = 1
    workspace_bytes: NonNegativeInt = 0

    @property
    def is_gpu(self) -> bool:
        """Whether it is a GPU: cuBLAS has a workspace on every one, and none on a CPU."""
        return self.workspace_bytes > 0

    @property
    def has_bf16(self) -> bool:
        """Whether it computes in bf16 by its own units: a CPU does, and a GPU from compute capability 8.0 on."""
        return not self.is_gpu or self.compute_capability >= BF16_CAPABILITY

    @property
    def allocator_bytes(self) -> int | None:
        """What is left for PyTorch's allocator on a GPU; None if its memory isn't known."""
        return self.memory_bytes - CONTEXT_BYTES if self.is_gpu and self.memory_bytes else None

    def attention_kernel(self, run: Run) -> str:
        """Which kernel a run's attention gets here: flash, efficient, cudnn, math or eager.

        `torch.nn.functional.scaled_dot_product_attention` on CUDA: flash needs 16 bits, compute capability 8.0 and no
        mask; the memory-efficient kernel can't group heads (sdp_utils.cpp); transformers expands them under a mask.
        """
        if run.attention in ("eager", "sdpa-math", "sdpa-cudnn", "sdpa-efficient"):
            return run.attention.removeprefix("sdpa-")
        if not self.is_gpu or run.attention == "flash_attention_2":
            return "flash"
        if run.precision != "fp32" and self.compute_capability >= 8 and not run.padded:
            return "flash"
        model = run.model
        grouped = model.num_attention_heads != model.num_key_value_heads
        return "math" if grouped and not run.padded else "efficient"


CPU = Device(name="cpu")


@cache
def known_devices() -> dict[str, Device]:
    """The rows of `data/gpus.csv` by name, and "cpu"."""
    with open(DATA / "gpus.csv", encoding="utf-8", newline="") as file:
        rows = [Device(**{key: value for key, value in row.items() if value}) for row in csv.DictReader(file)]
    return {device.name.lower(): device for device in [CPU, *rows]}


def find_device(name: str | None = None) -> Device:
    """The device of that name, whatever its case; without a name, this machine's.

    >>> find_device("h200").name
    'H200'

    Raises:
        DeviceError: one sentence with the names that are known.
    """
    if name is None:
        return this_device()
    if name.lower() not in known_devices():
        known = ", ".join(device.name for device in known_devices().values())
        raise DeviceError(f"{name!r} is not a device in data/gpus.csv; known: {known}")
    return known_devices()[name.lower()]


@cache
def this_device() -> Device:
    """This machine's first GPU, by its row of `data/gpus.csv` or else by its driver; without one its CPU."""
    gpu = ask_driver(first_gpu)
    if gpu is None:
        import psutil

        return CPU.model_copy(update={"memory_bytes": psutil.virtual_memory().total})
    for device in known_devices().values():
        if device.matches and gpu.name.startswith(device.matches):
            return device
    is_hopper = int(gpu.compute_capability) == 9
    return Device(**gpu._asdict(), workspace_bytes=HOPPER_WORKSPACE_BYTES if is_hopper else WORKSPACE_BYTES)


def usable_cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def __getattr__(name: str) -> Device:
    """Known devices as names of this module: `from labs_utils.device import H200`."""
    if name.lower() in known_devices():
        return known_devices()[name.lower()]
    raise AttributeError(f"labs_utils.device has no {name!r}")
