"""`StepClock`: one training step taken apart: its phases, the copies between device and host, and the host's work."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from labs_utils.profiling.phase_clock import PhaseClock

DOWN, UP = "device_to_host", "host_to_device"
COPIES = (torch.ops.aten.copy_.default, torch.ops.aten._to_copy.default)


class StepClock(TorchDispatchMode):
    """Context manager around one step that is called with `clock.begin` as its `on_phase`.

    `phases` are seconds by phase, `host_work` seconds of what `watching` has wrapped, `copies` are {phase: {direction:
    {"calls", "bytes", "pinned_bytes", "seconds"}}}. Copies inside the host or inside the device don't count. A CPU has
    one memory: there `on_host` are the tensors that would be the host's.
    """

    def __init__(self, device: torch.device, on_host: Iterable[torch.Tensor] = ()):
        super().__init__()
        self._clock = PhaseClock(device)
        self._host_storages = {tensor.untyped_storage()._cdata for tensor in on_host}
        self.device, self.phases = device, self._clock.seconds
        self.host_work: dict[str, float] = {}
        self.copies: dict[str, dict[str, dict[str, int | float]]] = {}
        self._events: list[tuple[dict, torch.cuda.Event, torch.cuda.Event]] = []

    def begin(self, phase: str) -> None:
        """End the phase before, and begin this one."""
        self._clock.begin(phase)

    def end(self) -> None:
        """End the last phase and read the device's clocks."""
        self._clock.end()
        for copies, begin, end in self._events:
            copies["seconds"] += begin.elapsed_time(end) / 1000
        self._events.clear()

    @contextmanager
    def watching(self, owner, method: str, name: str) -> Iterator[None]:
        """Time each call of a method of the host's as `host_work[name]`; it must have ended when it returns."""
        called = getattr(owner, method)
        setattr(owner, method, self._with_stopwatch(called, name))
        try:
            yield
        finally:
            setattr(owner, method, called)

    def _with_stopwatch(self, called: Callable, name: str) -> Callable:
        def with_stopwatch(*args, **kwargs):
            begin = time.perf_counter()
            result = called(*args, **kwargs)
            self.host_work[name] = self.host_work.get(name, 0.0) + time.perf_counter() - begin
            return result

        return with_stopwatch

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        way = self._direction(func, args, kwargs) if func in COPIES else None
        if way is None:
            return func(*args, **kwargs)
        begin = self._mark()
        result = func(*args, **kwargs)
        self._count(way, result, args[1] if func is COPIES[0] else args[0], begin, self._mark())
        return result

    def _direction(self, func, args: tuple, kwargs: dict) -> str | None:
        """Which way a copy crosses, if it does. On a CPU what is made in a step is the device's, unless it is known."""
        if func is COPIES[0]:
            to_host, from_host = self._is_on_host(args[0]), self._is_on_host(args[1])
        elif self.device.type == "cpu":
            return None  # a change of type in place
        else:
            target = torch.device(kwargs.get("device") or args[0].device)
            to_host, from_host = target.type == "cpu", self._is_on_host(args[0])
        return None if to_host == from_host else DOWN if to_host else UP

    def _is_on_host(self, tensor: torch.Tensor) -> bool:
        if self.device.type == "cpu":
            return tensor.untyped_storage()._cdata in self._host_storages
        return tensor.device.type == "cpu"

    def _mark(self) -> torch.cuda.Event | None:
        if self.device.type != "cuda":
            return None
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _count(self, way: str, result: torch.Tensor, source: torch.Tensor, begin, end) -> None:
        """Count one copy. Where it changes the type too, the host does that: aten/src/ATen/native/cuda/Copy.cu."""
        on_host = result if way == DOWN else source
        nbytes = source.nbytes if way == DOWN else result.nbytes
        of_phase = self.copies.setdefault(self._clock.phase, {})
        copies = of_phase.setdefault(way, {"calls": 0, "bytes": 0, "pinned_bytes": 0, "seconds": 0.0})
        copies["calls"] += 1
        copies["bytes"] += nbytes
        copies["pinned_bytes"] += nbytes if on_host.is_pinned() and result.dtype == source.dtype else 0
        if begin is not None:
            self._events.append((copies, begin, end))

    def moved_bytes(self) -> dict[str, int]:
        """Bytes that crossed in each direction, in all phases."""
        return {way: sum(copies.get(way, {}).get("bytes", 0) for copies in self.copies.values()) for way in (DOWN, UP)}

    def split_seconds(self) -> dict[str, float]:
        """Seconds of the phases, and of what happens inside them: transfers, and the host's work by name.

        Gradients go down in backward; with accumulation those of earlier micro-steps come up again there.
        """
        gradients = self._copy_seconds("backward", DOWN)
        parameters = sum(self._copy_seconds(phase, UP) for phase in self.copies)
        return {**self.phases, **self.host_work, "gradient_transfer": gradients, "parameter_transfer": parameters}

    def _copy_seconds(self, phase: str, way: str) -> float:
        return self.copies.get(phase, {}).get(way, {}).get("seconds", 0.0)
