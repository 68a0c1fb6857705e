"""`rates_of(device)`: how fast a device does what a step is made of, from `data/measurements/benchmarks.jsonl`.

A device that nothing was recorded on is taken to reach what the reference reaches of its data sheet: the same shares
of the peak rates, at the same sizes, and the same host.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from functools import cache

from labs_utils.device import Device, find_device
from labs_utils.recordings import Benchmark, benchmarks
from labs_utils.time_model import subjects

REFERENCE = "H200"
PEAK = {"fp32": "fp32_flop_per_s", "bf16": "bf16_flop_per_s", "fp16": "fp16_flop_per_s"}
Points = list[tuple[float, float]]


@cache
def rates_of(device: Device) -> DeviceRates | None:
    """The rates of a GPU; None for a CPU, and for a GPU of which not even the data sheet is known."""
    if not device.is_gpu or not device.hbm_bytes_per_s:
        return None
    for source in (device, find_device(REFERENCE)):
        lines = benchmarks(source)
        if any(line.subject == subjects.host_step("torch") for line in lines):  # `labs doctor --full` was run there
            return DeviceRates(device, lines, source)
    return None


def between(points: Points, size: float) -> float:
    """The value at a size: on a straight line between the logarithms of the two nearest, and level beyond the ends.

    >>> round(between([(1, 10.0), (100, 1000.0)], 10)), between([(1, 10.0), (100, 1000.0)], 1000)
    (100, 1000.0)
    """
    after = bisect_left(points, (size,))
    if after in (0, len(points)):
        return points[min(after, len(points) - 1)][1]
    (low, below), (high, above) = points[after - 1], points[after]
    share = math.log(size / low) / math.log(high / low)
    return below * (above / below) ** share


class MissingRate(LookupError):
    """A rate that has no line in the benchmarks of the device that stands in for this one."""


class DeviceRates:
    """Seconds on a device, from lines that were measured on `source`, which may be another."""

    def __init__(self, device: Device, lines: list[Benchmark], source: Device):
        self.device, self.source, self._lines = device, source, lines
        self._curves: dict[tuple, Points] = {}

    def curve(self, subject: str, size: Callable[[dict[str, int]], float], **fixed: int) -> Points:
        """The medians of a subject by size, smallest first; `fixed` are entries of the shape that have to agree."""
        key = (subject, *sorted(fixed.items()))
        if key not in self._curves:
            lines = (line for line in self._lines if line.subject == subject)
            lines = (line for line in lines if all(line.shape.get(name) == value for name, value in fixed.items()))
            self._curves[key] = sorted((size(line.shape), line.value["median"]) for line in lines)
        if not self._curves[key]:
            raise MissingRate(subject)
        return self._curves[key]

    def value(self, subject: str) -> float:
        """The median of a subject that was measured at one size."""
        return self.curve(subject, lambda shape: 0)[0][1]

    def share(self, peak: str) -> float:
        """This device's peak rate as a share of the one that was measured, which has all of them."""
        return (getattr(self.device, peak) or 0) / getattr(self.source, peak)

    def product_seconds(self, flops: float, number: str) -> float:
        """A matrix product of "fp32", "bf16" or "fp16"; a device that has no such units computes it in fp32."""
        if not self.share(PEAK[number]):
            return self.product_seconds(flops, "fp32")
        rates = self.curve(subjects.product(number), lambda shape: 2 * shape["m"] * shape["n"] * shape["k"])
        return flops / (between(rates, flops) * self.share(PEAK[number]))

    def attention_seconds(self, flops: float, kernel: str, part: str, seq_len: int, head_dim: int) -> float:
        """A fused attention kernel's "forward" or "backward"."""
        subject = subjects.attention(kernel, part)
        dims = {line.shape["head_dim"] for line in self._lines if line.subject == subject}
        nearest = min(dims, key=lambda dim: (abs(dim - head_dim), dim), default=0)
        rates = self.curve(subject, lambda shape: shape["seq_len"], head_dim=nearest)
        half = max(self.share(PEAK["bf16"]), self.share(PEAK["fp16"]))
        return flops / (between(rates, seq_len) * half)

    def pass_seconds(self, nbytes: float, operator: str = "mul") -> float:
        """An operator of `subjects.PASSES` that reads and writes so many bytes."""
        rates = self.curve(subjects.memory_pass(operator), lambda shape: shape["bytes"])
        return nbytes / (between(rates, nbytes) * self.share("hbm_bytes_per_s")) if nbytes else 0.0

    def optimizer_seconds(self, name: str, itemsize: int, parameters: float) -> float:
        """An optimizer's step over so many parameters of 2 or 4 bytes; in fp32 they take twice the bytes."""
        longer = 1.0
        if itemsize == 4:
            longer = self.value(subjects.optimizer("adamw", "bf16")) / self.value(subjects.optimizer("adamw", "fp32"))
        rate = self.value(subjects.optimizer(name, "bf16")) * self.share("hbm_bytes_per_s")
        return parameters * longer / rate

    def collective_seconds(self, name: str, nbytes: float, ranks: int, piece_bytes: float) -> float:
        """A collective over so many bytes in all, in pieces; between other numbers of ranks than recorded, as a ring.

        A ring moves (N-1)/N of the whole through each rank. All ranks are taken to have the link that was recorded.
        """
        if ranks == 1 or not nbytes:
            return 0.0
        piece = min(nbytes, piece_bytes)
        times = self.curve(name, lambda shape: shape["bytes"])
        latency, seconds = min(time for _, time in times), between(times, piece)
        if piece > times[-1][0]:
            seconds = times[-1][1] * piece / times[-1][0]
        recorded_ranks = next(line.shape["ranks"] for line in self._lines if line.subject == name)
        ring = (1 - 1 / ranks) / (1 - 1 / recorded_ranks)
        return nbytes / piece * (latency + (seconds - latency) * ring / self._link_share())

    def _link_share(self) -> float:
        """GPUs without links of their own meet through the host."""
        here = self.device.link_bytes_per_s or self.device.host_bytes_per_s
        return here / self.source.link_bytes_per_s

    def host_copy_seconds(self, nbytes: float, direction: str) -> float:
        """Bytes `subjects.TO_HOST` or `TO_DEVICE`, through pinned memory."""
        return nbytes / (self.value(subjects.copy(direction)) * self.share("host_bytes_per_s"))

    def host_seconds(self, engine: str, variant: str = "") -> float:
        """The host's seconds in one of the small steps of `subjects.host_runs`."""
        return self.value(subjects.host_step(engine, variant))
