"""`CommunicationCounter`: the collectives that run inside it, by name: how many, and the bytes they were given."""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

# By the names of torch's own operators (torch/csrc/distributed/c10d/Ops.cpp); the first that fits.
COLLECTIVES = {
    "reduce_scatter": "reduce_scatter", "allgather": "all_gather", "allreduce": "all_reduce", "alltoall": "all_to_all",
    "broadcast": "broadcast", "gather": "gather", "scatter": "scatter", "reduce": "reduce",
}  # fmt: skip


class CommunicationCounter(TorchDispatchMode):
    """Context manager that counts what this rank hands to collectives, whoever calls them: DeepSpeed, DDP, a cell.

    `counts` is {"all_gather": {"calls": 3, "bytes": 3000}, …}. `bytes` are those of the whole tensor, so what all ranks
    hold after an all-gather and what each rank holds before a reduce-scatter; a ring moves (N-1)/N of it through each
    rank, and twice that for an all-reduce.
    """

    def __init__(self):
        super().__init__()
        self.counts: dict[str, dict[str, int]] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "c10d":
            self._count(func, args)
        return func(*args, **(kwargs or {}))

    def _count(self, func, args) -> None:
        name = next((name for word, name in COLLECTIVES.items() if word in str(func)), None)
        whole_bytes = max(map(tensor_bytes, args), default=0)
        if name and whole_bytes:
            count = self.counts.setdefault(name, {"calls": 0, "bytes": 0})
            count["calls"] += 1
            count["bytes"] += whole_bytes


def tensor_bytes(argument) -> int:
    """Bytes of the tensors in one argument of an operator, however deep in lists."""
    return sum(value.nbytes for value in tree_iter(argument) if isinstance(value, torch.Tensor))
