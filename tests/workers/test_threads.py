"""Ranks that are threads: torch's collectives work over them, whichever of their names is used."""

import pytest
import torch
import torch.distributed as dist

from labs_utils.workers.threads import on_ranks


def numbers(group):
    return torch.arange(4.0) * 10 ** group.rank()


def by_lists(group):
    part, parts = torch.empty(2), [torch.empty(2), torch.empty(2)]
    dist.reduce_scatter(part, list(numbers(group).split(2)), group=group)
    dist.all_gather(parts, part, group=group)
    return torch.cat(parts)


def by_tensors(group):
    part, whole = torch.empty(2), torch.empty(4)
    dist.reduce_scatter_tensor(part, numbers(group), group=group)
    dist.all_gather_into_tensor(whole, part, group=group)
    return whole


def in_one(group):
    whole = numbers(group)
    dist.all_reduce(whole, group=group)
    return whole


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("add_up", [by_lists, by_tensors, in_one])
def test_every_way_to_add_up_gives_the_sum_on_every_rank(add_up):
    assert [total.tolist() for total in on_ranks(2, add_up)] == [[0, 11, 22, 33]] * 2


def test_torch_knows_a_groups_rank_and_size_while_its_ranks_work():
    before = dist.get_rank
    told = on_ranks(3, lambda group: (dist.get_rank(group), dist.get_world_size(group), group.rank()))
    assert told == [(rank, 3, rank) for rank in range(3)] and dist.get_rank is before


def test_a_rank_that_fails_leaves_none_waiting():
    def fail(group):
        if group.rank() == 1:
            raise ValueError("the batch is empty")
        in_one(group)

    with pytest.raises(ValueError, match="the batch is empty"):
        on_ranks(2, fail, limit_seconds=5)
