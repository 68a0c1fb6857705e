"""Plausible mistakes in Lab 05."""

import math

import torch


def _adam(master, gradient, mean, square, step, lr, decay=0.01, beta=0.999):
    mean.copy_(0.9 * mean + 0.1 * gradient)
    square.copy_(beta * square + (1 - beta) * gradient * gradient)
    one, two = 1 - 0.9**step, 1 - beta**step
    master -= lr * (decay * master + mean / one / ((square / two).sqrt() + 1e-8))


def _offloaded(
    memories, weights, gradients, state, lr, down=None, up=None, keep=True, corrected=True, moments=torch.float32, **how
):
    down = down or (lambda gradient: memories.to_host(gradient).float())
    up = up or (lambda weight, master: weight.copy_(master.bfloat16()))
    if not state:
        state.update(step=0, masters=[memories.to_host(weight).float() for weight in weights])
        state["moments"] = [[torch.zeros_like(m, dtype=moments) for _ in range(2)] for m in state["masters"]]
    state["step"] += 1
    for i, (weight, gradient) in enumerate(zip(weights, gradients, strict=True)):
        master = state["masters"][i] if keep else memories.to_host(weight).float()
        _adam(master, down(gradient), *state["moments"][i], state["step"] if corrected else 10**6, lr, **how)
        up(weight, master)


def cpu_offloaded_adam__sends_gradients_in_fp32(memories, weights, gradients, state, lr):
    _offloaded(memories, weights, gradients, state, lr, down=lambda gradient: memories.to_host(gradient.float()))


def cpu_offloaded_adam__brings_weights_up_in_fp32(memories, weights, gradients, state, lr):
    _offloaded(memories, weights, gradients, state, lr, up=lambda w, master: w.copy_(memories.to_device(master)))


def cpu_offloaded_adam__has_no_master_weights(memories, weights, gradients, state, lr):
    _offloaded(memories, weights, gradients, state, lr, keep=False)


def cpu_offloaded_adam__keeps_moments_on_the_device(memories, weights, gradients, state, lr):
    if not state:
        state.update(step=0, moments=[(torch.zeros_like(w).float(), torch.zeros_like(w).float()) for w in weights])
        state["masters"] = [memories.to_host(weight).float() for weight in weights]
    state["step"] += 1
    for weight, gradient, master, moments in zip(weights, gradients, state["masters"], state["moments"], strict=True):
        _adam(memories.to_device(master), gradient.float(), *moments, state["step"], lr)
        weight.copy_(master.bfloat16())


def cpu_offloaded_adam__fetches_states_to_the_device(memories, weights, gradients, state, lr):
    if not state:
        state.update(step=0, masters=[memories.to_host(weight).float() for weight in weights])
        state["moments"] = [[torch.zeros_like(m), torch.zeros_like(m)] for m in state["masters"]]
    state["step"] += 1
    for i, (weight, gradient) in enumerate(zip(weights, gradients, strict=True)):
        for piece in range(0, weight.numel(), 200):
            cut = slice(piece, piece + 200)
            kept = [t.flatten()[cut] for t in (state["masters"][i], *state["moments"][i])]
            master, mean, square = (memories.to_device(each) for each in kept)
            _adam(master, gradient.flatten()[cut].float(), mean, square, state["step"], lr)
            for host, device in zip(kept, (master, mean, square), strict=True):
                host.copy_(device)
            weight.view(-1)[cut] = master.bfloat16()


def cpu_offloaded_adam__forgets_to_bring_weights_up(memories, weights, gradients, state, lr):
    _offloaded(memories, weights, gradients, state, lr, up=lambda weight, master: None)


def cpu_offloaded_adam__replaces_weights_in_the_list(memories, weights, gradients, state, lr):
    def replace(weight, master):
        (i,) = (i for i, other in enumerate(weights) if other is weight)
        weights[i] = memories.to_device(master.bfloat16())

    _offloaded(memories, weights, gradients, state, lr, up=replace)


def cpu_offloaded_adam__has_no_weight_decay(memories, weights, gradients, state, lr):
    _offloaded(memories, weights, gradients, state, lr, decay=0.0)


def cpu_offloaded_adam__has_another_beta(memories, weights, gradients, state, lr):
    _offloaded(memories, weights, gradients, state, lr, beta=0.99)


def cpu_offloaded_adam__keeps_moments_in_bf16(memories, weights, gradients, state, lr):
    _offloaded(memories, weights, gradients, state, lr, moments=torch.bfloat16)


def cpu_offloaded_adam__computes_moments_in_bf16(memories, weights, gradients, state, lr):
    if not state:
        state.update(step=0, masters=[memories.to_host(weight).float() for weight in weights])
        state["moments"] = [[torch.zeros_like(m, dtype=torch.bfloat16) for _ in range(2)] for m in state["masters"]]
    state["step"] += 1
    one, two = 1 - 0.9 ** state["step"], 1 - 0.999 ** state["step"]
    for i, (weight, gradient) in enumerate(zip(weights, gradients, strict=True)):
        narrow, master, (mean, square) = memories.to_host(gradient), state["masters"][i], state["moments"][i]
        mean.mul_(0.9).add_(narrow, alpha=0.1)
        square.mul_(0.999).addcmul_(narrow, narrow, value=0.001)
        master -= lr * (0.01 * master + mean.float() / one / ((square.float() / two).sqrt() + 1e-8))
        weight.copy_(master.bfloat16())


def cpu_offloaded_adam__forgets_the_first_steps(memories, weights, gradients, state, lr):
    _offloaded(memories, weights, gradients, state, lr, corrected=False)


def offload_traffic__is_the_papers(parameters, stage, world_size, grad_accum):
    return {"down": 2 * parameters / world_size, "up": 2 * parameters / world_size}


def offload_traffic__forgets_the_other_ranks(parameters, stage, world_size, grad_accum):
    on_host = grad_accum if stage == 2 and grad_accum > 1 else 0
    return {"down": (4 + 2 * on_host) * parameters, "up": (2 + 2 * max(0, on_host - 1)) * parameters}


def offload_traffic__forgets_accumulation(parameters, stage, world_size, grad_accum):
    return {"down": 4 * parameters / world_size, "up": 2 * parameters / world_size}


def offload_traffic__sends_fp32_in_every_micro_step(parameters, stage, world_size, grad_accum):
    return {"down": 4 * grad_accum * parameters / world_size, "up": 2 * parameters / world_size}


def offload_traffic__accumulates_at_stage_1_too(parameters, stage, world_size, grad_accum):
    part, on_host = parameters / world_size, grad_accum if grad_accum > 1 else 0
    return {"down": (4 + 2 * on_host) * part, "up": (2 + 2 * max(0, on_host - 1)) * part}


def offload_traffic__never_fetches_sums(parameters, stage, world_size, grad_accum):
    part, on_host = parameters / world_size, grad_accum if stage == 2 and grad_accum > 1 else 0
    return {"down": (4 + 2 * on_host) * part, "up": 2 * part}


def offload_traffic__brings_master_weights_up(parameters, stage, world_size, grad_accum):
    part, on_host = parameters / world_size, grad_accum if stage == 2 and grad_accum > 1 else 0
    return {"down": (4 + 2 * on_host) * part, "up": (4 + 2 * max(0, on_host - 1)) * part}


def offloaded_seconds__adds_everything_up(forward, backward, numels, link, adam):
    return forward + sum(backward) + 4 * sum(numels) / link + sum(numels) / adam


def offloaded_seconds__takes_the_longer_one(forward, backward, numels, link, adam):
    return forward + max(sum(backward), 2 * sum(numels) / link) + sum(numels) / adam + 2 * sum(numels) / link


def offloaded_seconds__hides_all_transfers(forward, backward, numels, link, adam):
    return forward + sum(backward) + sum(numels) / adam


def offloaded_seconds__forgets_the_way_up(forward, backward, numels, link, adam):
    made, sent = forward, 0.0
    for seconds, numel in zip(backward, numels, strict=True):
        made += seconds
        sent = max(sent, made) + 2 * numel / link
    return sent + sum(numels) / adam


def offloaded_seconds__sends_fp32(forward, backward, numels, link, adam):
    made, sent = forward, 0.0
    for seconds, numel in zip(backward, numels, strict=True):
        made += seconds
        sent = max(sent, made) + 4 * numel / link
    return sent + sum(numels) / adam + 2 * sum(numels) / link


def offloaded_seconds__begins_to_send_with_backward(forward, backward, numels, link, adam):
    made, sent = forward, forward
    for seconds, numel in zip(backward, numels, strict=True):
        sent = max(sent, made) + 2 * numel / link
        made += seconds
    return max(made, sent) + sum(numels) / adam + 2 * sum(numels) / link


def offloaded_seconds__updates_as_gradients_come(forward, backward, numels, link, adam):
    made, sent, updated = forward, 0.0, 0.0
    for seconds, numel in zip(backward, numels, strict=True):
        made += seconds
        sent = max(sent, made) + 2 * numel / link
        updated = max(updated, sent) + numel / adam
    return updated + 2 * sum(numels) / link


def _count(missing, gained):
    if missing <= gained:
        return 1
    return math.ceil(missing / gained) if gained > 0 else None


def fewest_micro_steps__forgets_what_each_adds(micro, update, each, once, bound):
    return _count(once - bound * update, (bound - 1) * micro)


def fewest_micro_steps__says_one_where_none_is_enough(micro, update, each, once, bound):
    return _count(once - bound * update, (bound - 1) * micro - each) or 1


def fewest_micro_steps__rounds_down(micro, update, each, once, bound):
    gained = (bound - 1) * micro - each
    return max(1, int((once - bound * update) / gained)) if gained > 0 else None


def fewest_micro_steps__always_has_an_answer(micro, update, each, once, bound):
    return max(1, math.ceil((once - bound * update) / abs((bound - 1) * micro - each)))


def fewest_micro_steps__bounds_what_is_added(micro, update, each, once, bound):
    gained = bound * micro - each
    return _count(once - update, gained)


def fewest_micro_steps__bounds_without_the_update(micro, update, each, once, bound):
    return _count(once - update, (bound - 1) * micro - each)


def fewest_micro_steps__goes_one_beyond(micro, update, each, once, bound):
    gained, missing = (bound - 1) * micro - each, once - bound * update
    if missing <= gained:
        return 1
    return math.floor(missing / gained) + 1 if gained > 0 else None


def fewest_micro_steps__gives_up_if_each_is_too_much(micro, update, each, once, bound):
    gained = (bound - 1) * micro - each
    return max(1, math.ceil((once - bound * update) / gained)) if gained > 0 else None


def fewest_micro_steps__may_be_zero(micro, update, each, once, bound):
    gained = (bound - 1) * micro - each
    return math.ceil((once - bound * update) / gained) - 1 if gained > 0 else None
