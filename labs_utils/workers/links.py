"""One rank of a measurement of the links between ranks: how long collectives take, by size.

torchrun --nproc-per-node 2 -m labs_utils.workers.links sizes.json
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist

from labs_utils.profiling.timing import time_calls
from labs_utils.training.distributed import start_links
from labs_utils.workers.rank import Progress, rank_device, serve


def work(argument: dict, progress: Progress) -> list[dict]:
    """Time collectives of `argument["bytes"]`, a list of sizes of the whole tensor, in bf16.

    Returns:
        For each collective and size `collective`, `bytes` and `seconds` (a `Spread`), as this rank saw them.
    """
    device = rank_device()
    start_links(device)
    return [timing for size in argument["bytes"] for timing in time_collectives(size, device, progress)]


def time_collectives(whole_bytes: int, device: torch.device, progress: Progress) -> Iterator[dict]:
    """Each collective of one size, as plain data: see `work`."""
    for name, call in collectives(whole_bytes, device).items():
        progress(f"{name} of {whole_bytes} bytes")
        dist.barrier()
        seconds = time_calls(call, device.type, repeats=9, budget_seconds=float("inf"))  # as often on every rank
        yield {"collective": name, "bytes": whole_bytes, "seconds": seconds.model_dump()}


def collectives(whole_bytes: int, device: torch.device) -> dict[str, Callable[[], object]]:
    """Those that ZeRO is made of, each over one tensor of `whole_bytes` and one of a rank's share of it."""
    ranks = dist.get_world_size()
    share = torch.zeros(whole_bytes // 2 // ranks, dtype=torch.bfloat16, device=device)
    whole = torch.zeros(share.numel() * ranks, dtype=torch.bfloat16, device=device)
    return {
        "all_reduce": lambda: dist.all_reduce(whole),
        "all_gather": lambda: dist.all_gather_into_tensor(whole, share),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(share, whole),
    }


if __name__ == "__main__":
    serve(work)
