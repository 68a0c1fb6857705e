"""A bound on the tensors of an attempt in this process, where the judge caps the memory of another one."""

from __future__ import annotations

from labs_utils.exercises.contract import MEMORY_BYTES
from labs_utils.profiling.tracker import MemoryTracker


class BoundedTracker(MemoryTracker):
    """A tracker under which an operator raises `MemoryError` once tensors take more than `MEMORY_BYTES` together."""

    live_bytes = 0

    def hold(self, nbytes: int, operator: str, part: str = "workspace") -> int:
        self.live_bytes += nbytes
        return super().hold(nbytes, operator, part)

    def release(self, identity: int) -> None:
        super().release(identity)
        self.live_bytes -= self._appeared[identity][0]

    def after_operator(self, func, args) -> None:
        if self.live_bytes > MEMORY_BYTES:
            raise MemoryError
