"""A device and its host on a machine that has one memory: which tensor lies where, what crosses, and what is too much.

A dispatch mode holds every operator to the rules that CUDA has: tensors of both don't mix, a result lies where its
operands do, what is made from nothing lies on the host, and the device has so many bytes and no more.
"""

from __future__ import annotations

import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

COPY = torch.ops.aten.copy_.default
WAYS = "What is computed from its tensors stays there, also with .cpu(); only to_host, to_device and copy_ cross"


class DeviceIsFull(torch.OutOfMemoryError):
    """The device has no room for a tensor. Doesn't say "out of memory", which is how the process's own end is told."""


class TwoMemories(TorchDispatchMode):
    """Context manager around code that computes with tensors of both memories; `device_bytes` is the device's limit.

    `moved` counts bytes that have crossed: {"down": to the host, "up": to the device}.
    """

    def __init__(self, device_bytes: int | None = None):
        super().__init__()
        self.limit_bytes, self.used_bytes, self.peak_bytes = device_bytes, 0, 0
        self.moved = {"down": 0, "up": 0}
        self._on_device: set[int] = set()

    def to_host(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy of a tensor of the device in the host's memory, of the same type."""
        return self._copy(tensor, from_device=True)

    def to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy of a tensor of the host in the device's memory, of the same type."""
        return self._copy(tensor, from_device=False)

    def is_on_device(self, tensor: torch.Tensor) -> bool:
        return tensor.untyped_storage()._cdata in self._on_device

    def put_on_device(self, tensor: torch.Tensor) -> torch.Tensor:
        """Say that a tensor has been on the device from the beginning."""
        storage = tensor.untyped_storage()
        if storage._cdata not in self._on_device and storage.nbytes():
            self._take(storage)
        return tensor

    def _copy(self, tensor: torch.Tensor, from_device: bool) -> torch.Tensor:
        if self.is_on_device(tensor) != from_device:
            raise RuntimeError(f"this tensor is on the {'host' if from_device else 'device'} already")
        self.moved["down" if from_device else "up"] += tensor.nbytes
        with torch.utils._python_dispatch._disable_current_modes():
            copy = tensor.detach().clone()
        return copy if from_device else self.put_on_device(copy)

    def _take(self, storage: torch.UntypedStorage) -> None:
        nbytes = storage.nbytes()
        if self.limit_bytes is not None and self.used_bytes + nbytes > self.limit_bytes:
            room = f"{self.limit_bytes - self.used_bytes:,} of its {self.limit_bytes:,} bytes are free"
            raise DeviceIsFull(f"the device's memory is full: it was asked for {nbytes:,} bytes, and {room}. {WAYS}")
        self._on_device.add(storage._cdata)
        self.used_bytes += nbytes
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)
        weakref.finalize(storage, self._give_back, storage._cdata, nbytes).atexit = False

    def _give_back(self, key: int, nbytes: int) -> None:
        self._on_device.discard(key)
        self.used_bytes -= nbytes

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = [value for value in tree_iter((args, kwargs or {})) if isinstance(value, torch.Tensor)]
        where = {self.is_on_device(value) for value in given if value.dim()}
        if len(where) == 2:
            if func is not COPY:
                both = f"{func} was given tensors of the device and of the host: bring them together first"
                raise RuntimeError(f"{both}. {WAYS}")
            self._count_copy(*args[:2])
        result = func(*args, **(kwargs or {}))
        if where == {True} or (not where and any(map(self.is_on_device, given))):
            for value in tree_iter(result):
                if isinstance(value, torch.Tensor):
                    self.put_on_device(value)
        return result

    def _count_copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """`target.copy_(source)` across: where it changes the type too, the host does that, as with CUDA."""
        if self.is_on_device(target):
            self.moved["up"] += target.nbytes
        else:
            self.moved["down"] += source.nbytes
