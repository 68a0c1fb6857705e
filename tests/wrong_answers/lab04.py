"""Plausible mistakes in Lab 04."""

import threading

import torch
import torch.distributed as dist

_OUTSIDE = {}


def _adam(part, gradient, state, lr, decay=0.01, corrected=True):
    if not state:
        state.update(step=0, mean=torch.zeros_like(part), square=torch.zeros_like(part))
    state["step"] += 1
    state["mean"].mul_(0.9).add_(gradient, alpha=0.1)
    state["square"].mul_(0.999).addcmul_(gradient, gradient, value=0.001)
    one, two = (1 - 0.9 ** state["step"], 1 - 0.999 ** state["step"]) if corrected else (1, 1)
    part -= lr * (decay * part + state["mean"] / one / ((state["square"] / two).sqrt() + 1e-8))


def _parts(tensor, ranks):
    share = -(-tensor.numel() // ranks)
    return list(torch.nn.functional.pad(tensor, (0, share * ranks - tensor.numel())).split(share))


def _scattered(group, gradient):
    parts = _parts(gradient, group.size())
    mine = torch.empty_like(parts[0])
    dist.reduce_scatter(mine, parts, group=group)
    return mine / group.size()


def _gathered(group, weights, part):
    parts = [torch.empty_like(part) for _ in range(group.size())]
    dist.all_gather(parts, part, group=group)
    weights.copy_(torch.cat(parts)[: weights.numel()])


def zero1_step__is_plain_data_parallelism(group, weights, gradient, state, lr):
    dist.all_reduce(gradient, group=group)
    _adam(weights, gradient / group.size(), state, lr)


def zero1_step__keeps_all_moments_and_updates_its_part(group, weights, gradient, state, lr):
    dist.all_reduce(gradient, group=group)
    updated = weights.clone()
    _adam(updated, gradient / group.size(), state, lr)
    _gathered(group, weights, _parts(updated, group.size())[group.rank()].clone())


def zero1_step__hides_all_moments_in_a_nest(group, weights, gradient, state, lr):
    dist.all_reduce(gradient, group=group)
    _adam(weights, gradient / group.size(), state.setdefault("moments", {}), lr)


def zero1_step__keeps_moments_outside_of_the_state(group, weights, gradient, state, lr):
    dist.all_reduce(gradient, group=group)
    if not state:
        _OUTSIDE[threading.get_ident()] = {}
    state["step"] = state.get("step", 0) + 1
    _adam(weights, gradient / group.size(), _OUTSIDE[threading.get_ident()], lr)


def zero1_step__adds_gradients_up(group, weights, gradient, state, lr):
    part = _parts(weights, group.size())[group.rank()].clone()
    _adam(part, _scattered(group, gradient) * group.size(), state, lr)
    _gathered(group, weights, part)


def zero1_step__uses_its_own_gradient(group, weights, gradient, state, lr):
    part = _parts(weights, group.size())[group.rank()].clone()
    _adam(part, _parts(gradient, group.size())[group.rank()], state, lr)
    _gathered(group, weights, part)


def zero1_step__gathers_nothing(group, weights, gradient, state, lr):
    share = -(-weights.numel() // group.size())
    mine = _scattered(group, gradient)
    part = weights[group.rank() * share : (group.rank() + 1) * share]
    _adam(part, mine[: part.numel()], state, lr)


def zero1_step__drops_what_does_not_divide(group, weights, gradient, state, lr):
    share = weights.numel() // group.size()
    even = gradient[: share * group.size()]
    part = weights[group.rank() * share : (group.rank() + 1) * share].clone()
    _adam(part, _scattered(group, even), state, lr)
    _gathered(group, weights[: share * group.size()], part)


def zero1_step__forgets_the_first_steps(group, weights, gradient, state, lr):
    part = _parts(weights, group.size())[group.rank()].clone()
    _adam(part, _scattered(group, gradient), state, lr, corrected=False)
    _gathered(group, weights, part)


def zero1_step__starts_anew_in_every_step(group, weights, gradient, state, lr):
    part = _parts(weights, group.size())[group.rank()].clone()
    _adam(part, _scattered(group, gradient), {}, lr)
    _gathered(group, weights, part)


def zero1_step__has_no_weight_decay(group, weights, gradient, state, lr):
    part = _parts(weights, group.size())[group.rank()].clone()
    _adam(part, _scattered(group, gradient), state, lr, decay=0.0)
    _gathered(group, weights, part)


def _bytes(whole, part, stage):
    return {
        "parameters": 2 * (part if stage == 3 else whole),
        "gradients": 2 * (part if stage >= 2 else whole),
        "master_weights": 4 * (part if stage else whole),
        "moments": 8 * (part if stage else whole),
    }


def _up(numel, multiple):
    return -(-numel // multiple) * multiple


def rank_bytes__rounds_nothing(numels, stage, world_size):
    return _bytes(sum(numels), sum(numels) // world_size, stage)


def rank_bytes__rounds_shares_up(numels, stage, world_size):
    return _bytes(sum(numels), -(-sum(numels) // world_size), stage)


def rank_bytes__pads_each_parameter_at_every_stage(numels, stage, world_size):
    padded = sum(_up(numel, world_size) for numel in numels)
    return _bytes(padded if stage else sum(numels), padded // world_size, stage)


def rank_bytes__pads_the_row_at_every_stage(numels, stage, world_size):
    padded = _up(sum(numels), 2 * world_size)
    return _bytes(padded if stage else sum(numels), padded // world_size, stage)


def rank_bytes__partitions_gradients_at_stage_1(numels, stage, world_size):
    padded = _up(sum(numels), 2 * world_size)
    if stage == 3:
        padded = sum(_up(numel, world_size) for numel in numels)
    found = _bytes(padded if stage else sum(numels), padded // world_size, stage)
    return {**found, "gradients": found["gradients"] // (world_size if stage == 1 else 1)}


def rank_bytes__partitions_no_moments(numels, stage, world_size):
    found = rank_bytes__partitions_gradients_at_stage_1(numels, stage, world_size)
    gradients = 2 * sum(numels) if stage == 1 else found["gradients"]
    return {**found, "gradients": gradients, "moments": found["moments"] * (world_size if stage else 1)}


def rank_bytes__has_no_master_weights(numels, stage, world_size):
    return {**_bytes(sum(numels), -(-sum(numels) // world_size), stage), "master_weights": 0}


def _pass(parameters, world_size):
    return 2 * parameters * (world_size - 1) / world_size


def step_traffic__is_the_papers(parameters, stage, world_size, grad_accum):
    return (3 if stage == 3 else 2) * _pass(parameters, world_size)


def step_traffic__counts_whole_tensors(parameters, stage, world_size, grad_accum):
    reduced = 2 * (grad_accum if stage == 2 else 1) + bool(stage)
    return 2 * parameters * (3 * grad_accum if stage == 3 else reduced)


def step_traffic__reduces_once_at_every_stage(parameters, stage, world_size, grad_accum):
    return (3 if stage else 2) * _pass(parameters, world_size)


def step_traffic__reduces_in_every_micro_step(parameters, stage, world_size, grad_accum):
    return (3 * grad_accum if stage == 3 else 2 * grad_accum + bool(stage)) * _pass(parameters, world_size)


def step_traffic__takes_an_all_reduce_for_one_pass(parameters, stage, world_size, grad_accum):
    reduced = grad_accum if stage == 2 else 1
    return (3 * grad_accum if stage == 3 else reduced + bool(stage)) * _pass(parameters, world_size)


def step_traffic__gathers_weights_once_at_stage_3(parameters, stage, world_size, grad_accum):
    reduced = 2 * (grad_accum if stage == 2 else 1) + bool(stage)
    return (grad_accum + 2 if stage == 3 else reduced) * _pass(parameters, world_size)


def _lowest(each, parameters, other_bytes, memory_bytes):
    fitting = [stage for stage, size in enumerate(each) if size * parameters + other_bytes <= memory_bytes]
    return min(fitting, default=None)


def lowest_stage__divides_everything(parameters, world_size, other_bytes, memory_bytes):
    n = world_size
    return _lowest((16, 4 + 12 / n, 2 + 14 / n, 16 / n), parameters, other_bytes / n, memory_bytes)


def lowest_stage__never_says_that_none_fits(parameters, world_size, other_bytes, memory_bytes):
    n = world_size
    lowest = _lowest((16, 4 + 12 / n, 2 + 14 / n), parameters, other_bytes, memory_bytes)
    return 3 if lowest is None else lowest


def lowest_stage__forgets_the_activations(parameters, world_size, other_bytes, memory_bytes):
    n = world_size
    return _lowest((16, 4 + 12 / n, 2 + 14 / n, 16 / n), parameters, 0, memory_bytes)


def lowest_stage__always_has_an_answer(parameters, world_size, other_bytes, memory_bytes):
    n = world_size
    return _lowest((16, 4 + 12 / n, 2 + 14 / n), parameters, other_bytes, memory_bytes) or 3


def lowest_stage__forgets_the_master_weights(parameters, world_size, other_bytes, memory_bytes):
    n = world_size
    return _lowest((12, 4 + 8 / n, 2 + 10 / n, 12 / n), parameters, other_bytes, memory_bytes)


def lowest_stage__has_gradients_in_fp32(parameters, world_size, other_bytes, memory_bytes):
    n = world_size
    return _lowest((18, 6 + 12 / n, 2 + 16 / n, 18 / n), parameters, other_bytes, memory_bytes)


def lowest_stage__divides_only_the_moments_at_stage_1(parameters, world_size, other_bytes, memory_bytes):
    n = world_size
    return _lowest((16, 8 + 8 / n, 2 + 14 / n, 16 / n), parameters, other_bytes, memory_bytes)


def lowest_stage__divides_whole_stages(parameters, world_size, other_bytes, memory_bytes):
    n = world_size
    return _lowest((16, 4 + 12 / n, (2 + 14) / n, 16 / n), parameters, other_bytes, memory_bytes)


def lowest_stage__adds_up_the_cards(parameters, world_size, other_bytes, memory_bytes):
    fits = 16 * parameters + other_bytes <= memory_bytes * world_size
    return (0 if world_size == 1 else 3) if fits else None
