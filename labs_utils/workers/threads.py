"""Ranks as threads of this process: real collectives over gloo, with nothing to launch."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from unittest.mock import patch

import torch
import torch.distributed as dist


def on_ranks(world_size: int, work: Callable, limit_seconds: float = 20.0) -> list:
    """What `work(group)` returns on each of so many ranks, in their order.

    `group` is a process group over gloo; `group.rank()` and `group.size()` say who asks, as do `dist.get_rank(group)`
    and `dist.get_world_size(group)`. It isn't registered with torch, so collectives need `group=group`, and those that
    name a source or destination rank don't work.

    Raises:
        Exception: the first that a rank has raised. Its connections close then, so that no other waits for it; one that
            waits for a rank that never comes gives up after `limit_seconds`.
    """
    store, errors = dist.HashStore(), []

    def rank(number: int):
        torch.set_num_threads(1)  # of this thread: ranks are enough of them
        try:
            return work(group_over_gloo(store, number, world_size, limit_seconds))
        except BaseException as error:
            errors.append((time.monotonic(), error))
            traceback.clear_frames(error.__traceback__)  # they hold the group

    with told_by_groups(), ThreadPoolExecutor(world_size) as threads:
        results = list(threads.map(rank, range(world_size)))
    if errors:
        raise min(errors, key=lambda pair: pair[0])[1]
    return results


def group_over_gloo(store: dist.Store, rank: int, world_size: int, limit_seconds: float) -> dist.ProcessGroup:
    """A group with all of torch's collectives: those that take lists, and those that take one tensor."""
    group, cpu, gloo = (
        dist.ProcessGroup(store, rank, world_size),
        torch.device("cpu"),
        dist.ProcessGroup.BackendType.GLOO,
    )
    backend = dist.ProcessGroupGloo(store, rank, world_size, timedelta(seconds=limit_seconds))
    group._register_backend(cpu, gloo, backend)
    group._set_default_backend(gloo)
    return group


def told_by_groups():
    """A context in which `dist.get_rank(group)` asks the group: torch itself knows only groups of its processes."""
    asked = {"get_rank": dist.ProcessGroup.rank, "get_world_size": dist.ProcessGroup.size}
    return patch.multiple(dist, **{name: partial(ask, getattr(dist, name), of) for name, of in asked.items()})


def ask(of_this_process: Callable, of_group: Callable, group: dist.ProcessGroup | None = None) -> int:
    return of_this_process() if group is None else of_group(group)
