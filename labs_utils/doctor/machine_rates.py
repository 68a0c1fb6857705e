"""How fast this machine copies bytes and multiplies matrices, measured in about two seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

from pydantic import BaseModel

from labs_utils.device import BF16_CAPABILITY
from labs_utils.profiling.timing import Spread, time_calls
from labs_utils.time_model.subjects import TO_DEVICE, copy

COPIED_BYTES = 2**28  # larger than any cache
SMALLEST_MATRIX, LARGEST_MATRIX = 256, 8192
LONG_SECONDS = 0.01  # a product that takes this long, even at best, is large enough to measure
TYPES = {"fp32": "float32", "tf32": "float32", "fp16": "float16", "bf16": "bfloat16"}


class Rate(BaseModel, frozen=True):
    """So many bytes or operations a second: of what, for which sizes."""

    subject: str
    shape: dict[str, int] = {}
    per_second: Spread
    unit: Literal["bytes/s", "FLOP/s", "parameters/s"]

    def __str__(self) -> str:
        """Such as "55.0 GB/s" or "1.2 TFLOP/s", in powers of ten as data sheets have them."""
        size, prefix = (1e12, "T") if self.per_second.median >= 1e12 else (1e9, "G")
        if self.unit == "parameters/s":
            return f"{self.per_second.median / 1e9:.3g} billion parameters/s"
        return f"{self.per_second.median / size:.3g} {prefix}{'B/s' if self.unit == 'bytes/s' else self.unit}"

    def to_line(self, provenance: dict) -> dict:
        """The line of `data/measurements/benchmarks.jsonl` that records it."""
        fields = {"subject": self.subject, "shape": self.shape, "metric": "rate"}
        return {**fields, "value": self.per_second.model_dump(), "unit": self.unit, "provenance": provenance}


class Timing(BaseModel, frozen=True):
    """What something takes for so much of it, where that is no rate."""

    subject: str
    shape: dict[str, int] = {}
    seconds: Spread

    def __str__(self) -> str:
        return f"{1e3 * self.seconds.median:.3g} ms"

    def to_line(self, provenance: dict) -> dict:
        """The line of `data/measurements/benchmarks.jsonl` that records it."""
        fields = {"subject": self.subject, "shape": self.shape, "metric": "seconds"}
        return {**fields, "value": self.seconds.model_dump(), "unit": "s", "provenance": provenance}


Measured = Rate | Timing


def measured_rates(device: str, capability: float) -> list[Rate]:
    """Copies and matrix products on "cpu" or "cuda"."""
    return [*copy_rates(device), *(matmul_rate(name, device) for name in types_for(device, capability))]


def types_for(device: str, capability: float) -> tuple[str, ...]:
    """The types whose products are worth measuring: on a GPU tf32 needs what bf16 does.

    >>> types_for("cuda", 7.5)
    ('fp32', 'fp16')
    """
    if device == "cpu":
        return "fp32", "fp16", "bf16"
    return ("fp32", "tf32", "fp16", "bf16") if capability >= BF16_CAPABILITY else ("fp32", "fp16")


def copy_rates(device: str) -> Iterator[Rate]:
    """Bytes a second through the device's memory and, to a GPU, from pinned and from pageable memory."""
    import torch

    def rate(subject: str, source: torch.Tensor, nbytes: int = COPIED_BYTES) -> Rate:
        seconds = time_calls(lambda: target.copy_(source, non_blocking=True), device)
        return Rate(subject=subject, shape={"bytes": COPIED_BYTES}, per_second=seconds.rate(nbytes), unit="bytes/s")

    target = torch.zeros(COPIED_BYTES, dtype=torch.uint8, device=device)
    yield rate("memory read and written", target.clone(), 2 * COPIED_BYTES)  # as data sheets count
    if device == "cuda":
        pageable = torch.zeros(COPIED_BYTES, dtype=torch.uint8)
        yield rate(copy(TO_DEVICE), pageable.pin_memory())
        yield rate(copy(TO_DEVICE, pinned=False), pageable)


def matmul_rate(name: str, device: str) -> Rate:
    """The rate of a product of square matrices, the first of doubling size that takes long enough."""
    with fp32_products_in(name):
        for size in sizes():
            work = product(size, name, device)
            if size == LARGEST_MATRIX or time_calls(work, device, repeats=5).p20 > LONG_SECONDS:
                break
        seconds = time_calls(work, device)
    shape = dict.fromkeys("mnk", size)
    return Rate(subject=f"matmul {name}", shape=shape, per_second=seconds.rate(2 * size**3), unit="FLOP/s")


def sizes() -> Iterator[int]:
    """Sides of square matrices, each twice the one before.

    >>> list(sizes())
    [256, 512, 1024, 2048, 4096, 8192]
    """
    size = SMALLEST_MATRIX
    while size <= LARGEST_MATRIX:
        yield size
        size *= 2


def product(size: int, name: str, device: str) -> Callable[[], object]:
    """A call that multiplies two random square matrices: `2 * size**3` operations."""
    import torch

    left, right = torch.randn(2, size, size, device=device).to(getattr(torch, TYPES[name]))
    return lambda: left @ right


@contextmanager
def fp32_products_in(name: str):
    """Let GPUs compute fp32 products in tf32 where `name` says so, and nowhere else."""
    import torch

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if name == "tf32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
