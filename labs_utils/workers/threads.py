"""Ranks as threads of this process: real collectives over gloo, with nothing to launch."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import torch
import torch.distributed as dist


def on_ranks(world_size: int, work: Callable, limit_seconds: float = 20.0) -> list:
    """What `work(group)` returns on each of so many ranks, in their order.

    `group` is a process group over gloo; `group.rank()` and `group.size()` say who asks. It isn't registered with
    torch, so collectives need `group=group`, and those that take lists work.

    Raises:
        Exception: the first that a rank has raised. Its connections close then, so that no other waits for it; one that
            waits for a rank that never comes gives up after `limit_seconds`.
    """
    store, errors = dist.HashStore(), []

    def rank(number: int):
        torch.set_num_threads(1)  # of this thread: ranks are enough of them
        try:
            return work(dist.ProcessGroupGloo(store, number, world_size, timedelta(seconds=limit_seconds)))
        except BaseException as error:
            errors.append((time.monotonic(), error))
            traceback.clear_frames(error.__traceback__)  # they hold the group

    with ThreadPoolExecutor(world_size) as threads:
        results = list(threads.map(rank, range(world_size)))
    if errors:
        raise min(errors, key=lambda pair: pair[0])[1]
    return results
