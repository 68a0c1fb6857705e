"""Plausible mistakes in Lab 03."""

import torch
import torch.nn.functional as F


def _plan(micro_batch, grad_accum, ranks, seq_len, sequences):
    per_step = micro_batch * grad_accum * ranks
    return {
        "micro_batch": micro_batch,
        "grad_accum": grad_accum,
        "tokens_per_step": per_step * seq_len,
        "steps": sequences // per_step,
    }


def _up(a, b):
    return -(-a // b)


def batch_plan__rounds_down(target_tokens, seq_len, world_size, largest_micro_batch, sequences):
    per_rank = target_tokens // (seq_len * world_size)
    grad_accum = max(1, per_rank // largest_micro_batch)
    return _plan(max(1, per_rank // grad_accum), grad_accum, world_size, seq_len, sequences)


def batch_plan__forgets_the_ranks(target_tokens, seq_len, world_size, largest_micro_batch, sequences):
    needed = _up(target_tokens, seq_len)
    grad_accum = _up(needed, largest_micro_batch)
    return _plan(_up(needed, grad_accum), grad_accum, 1, seq_len, sequences)


def batch_plan__always_takes_the_largest_micro_batch(
    target_tokens, seq_len, world_size, largest_micro_batch, sequences
):
    grad_accum = _up(target_tokens, seq_len * world_size * largest_micro_batch)
    return _plan(largest_micro_batch, grad_accum, world_size, seq_len, sequences)


def batch_plan__accumulates_single_sequences(target_tokens, seq_len, world_size, largest_micro_batch, sequences):
    return _plan(1, _up(target_tokens, seq_len * world_size), world_size, seq_len, sequences)


def batch_plan__counts_micro_steps_as_steps(target_tokens, seq_len, world_size, largest_micro_batch, sequences):
    per_rank = _up(target_tokens, seq_len * world_size)
    grad_accum = _up(per_rank, largest_micro_batch)
    plan = _plan(_up(per_rank, grad_accum), grad_accum, world_size, seq_len, sequences)
    return {**plan, "steps": sequences // (plan["micro_batch"] * world_size)}


def batch_plan__reports_the_target(target_tokens, seq_len, world_size, largest_micro_batch, sequences):
    per_rank = _up(target_tokens, seq_len * world_size)
    grad_accum = _up(per_rank, largest_micro_batch)
    plan = _plan(_up(per_rank, grad_accum), grad_accum, world_size, seq_len, sequences)
    return {**plan, "tokens_per_step": target_tokens, "steps": sequences * seq_len // target_tokens}


def batch_plan__adds_one_to_make_room(target_tokens, seq_len, world_size, largest_micro_batch, sequences):
    per_rank = _up(target_tokens, seq_len * world_size)
    grad_accum = per_rank // largest_micro_batch + 1
    return _plan(_up(per_rank, grad_accum), grad_accum, world_size, seq_len, sequences)


def batch_plan__adds_one_sequence(target_tokens, seq_len, world_size, largest_micro_batch, sequences):
    per_rank = _up(target_tokens, seq_len * world_size)
    grad_accum = _up(per_rank, largest_micro_batch)
    micro_batch = min(largest_micro_batch, per_rank // grad_accum + 1)
    return _plan(micro_batch, grad_accum, world_size, seq_len, sequences)


def batch_plan__adds_one_to_the_quotient(target_tokens, seq_len, world_size, largest_micro_batch, sequences):
    per_rank = target_tokens // (seq_len * world_size) + 1
    grad_accum = _up(per_rank, largest_micro_batch)
    return _plan(_up(per_rank, grad_accum), grad_accum, world_size, seq_len, sequences)


def _summed_loss(model, batch, reduction="sum"):
    logits = model(batch["input_ids"])[:, :-1]
    return F.cross_entropy(logits.flatten(0, 1), batch["labels"][:, 1:].flatten(), reduction=reduction)


def _targets(batch):
    return int((batch["labels"][:, 1:] != -100).sum())


def _accumulated(model, batches, loss_of, zero_grad=True):
    """The loop as it should be, whatever the loss of a micro-batch is."""
    if zero_grad:
        model.zero_grad()
    mean = 0.0
    for batch in batches:
        loss = loss_of(batch)
        loss.backward()
        mean += loss.item()
    return mean


def _right(model, batches):
    count = sum(map(_targets, batches))
    return _accumulated(model, batches, lambda batch: _summed_loss(model, batch) / count)


def accumulate__is_a_mean_of_means(model, batches):
    return _accumulated(model, batches, lambda batch: _summed_loss(model, batch, "mean") / len(batches))


def accumulate__is_a_mean_of_means_without_the_empty_ones(model, batches):
    batches = [batch for batch in batches if _targets(batch)]
    return _accumulated(model, batches, lambda batch: _summed_loss(model, batch, "mean") / len(batches))


def accumulate__never_divides(model, batches):
    counted = [batch for batch in batches if _targets(batch)]
    return _accumulated(model, counted, lambda batch: _summed_loss(model, batch, "mean")) / len(batches)


def accumulate__sets_gradients_to_zero_in_the_loop(model, batches):
    count = sum(map(_targets, batches))

    def loss_of(batch):
        model.zero_grad()
        return _summed_loss(model, batch) / count

    return _accumulated(model, batches, loss_of)


def accumulate__adds_to_what_was_there(model, batches):
    count = sum(map(_targets, batches))
    return _accumulated(model, batches, lambda batch: _summed_loss(model, batch) / count, zero_grad=False)


def accumulate__counts_ignored_labels(model, batches):
    count = sum(batch["labels"][:, 1:].numel() for batch in batches)
    return _accumulated(model, batches, lambda batch: _summed_loss(model, batch) / count)


def accumulate__counts_the_first_label(model, batches):
    count = sum(int((batch["labels"] != -100).sum()) for batch in batches)
    return _accumulated(model, batches, lambda batch: _summed_loss(model, batch) / count)


def accumulate__does_not_shift(model, batches):
    count = sum(int((batch["labels"] != -100).sum()) for batch in batches)

    def loss_of(batch):
        logits = model(batch["input_ids"])
        return F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), reduction="sum") / count

    return _accumulated(model, batches, loss_of)


def accumulate__clips_each_micro_batch(model, batches):
    count = sum(map(_targets, batches))
    model.zero_grad()
    mean = 0.0
    for batch in batches:
        mean += _accumulated(model, [batch], lambda batch: _summed_loss(model, batch) / count, zero_grad=False)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    return mean


def accumulate__returns_the_last_loss(model, batches):
    _right(model, batches)
    with torch.no_grad():
        return (_summed_loss(model, batches[-1]) / sum(map(_targets, batches))).item()


def accumulate__memory_one_large_batch(model, batches):
    model.zero_grad()
    whole = {
        key: torch.nn.utils.rnn.pad_sequence(
            [row for batch in batches for row in batch[key]], batch_first=True, padding_value=filler
        )
        for key, filler in {"input_ids": 0, "labels": -100}.items()
    }
    loss = _summed_loss(model, whole, "mean")
    loss.backward()
    return loss.item()


def accumulate__memory_one_backward_at_the_end(model, batches):
    model.zero_grad()
    loss = sum(_summed_loss(model, batch) for batch in batches) / sum(map(_targets, batches))
    loss.backward()
    return loss.item()


def accumulate__memory_one_backward_in_ten(model, batches):
    count = sum(map(_targets, batches))
    tens = [batches[start : start + 10] for start in range(0, len(batches), 10)]
    return _accumulated(model, tens, lambda ten: sum(_summed_loss(model, batch) for batch in ten) / count)


def accumulate__stacks_labels(model, batches):
    assert int((torch.stack([batch["labels"] for batch in batches])[:, :, 1:] != -100).sum())
    return _right(model, batches)


def accumulate__takes_a_step(model, batches):
    mean = _right(model, batches)
    torch.optim.SGD(model.parameters(), lr=0.01).step()
    return mean


def accumulate__leaves_the_model_in_eval(model, batches):
    model.eval()
    return _right(model, batches)


def accumulate__freezes_the_weights(model, batches):
    mean = _right(model, batches)
    model.requires_grad_(False)
    return mean


def accumulate__overwrites_labels(model, batches):
    mean = _right(model, batches)
    for batch in batches:
        batch["labels"][batch["labels"] == -100] = 0
    return mean


def micro_step_peaks__adds_all_gradients_to_the_first_peak(rest, gradients, micro_steps):
    first = max(map(sum, zip(rest, gradients, strict=True)))
    return [first] + [first + gradients[-1]] * (micro_steps - 1)


def micro_step_peaks__gives_only_the_largest(rest, gradients, micro_steps):
    moments = list(map(sum, zip(rest, gradients, strict=True)))
    return [max(moments) + gradients[-1]]


def micro_step_peaks__stays_flat_from_the_start(rest, gradients, micro_steps):
    return [max(map(sum, zip(rest, gradients, strict=True)))] * micro_steps


def micro_step_peaks__grows_with_every_micro_step(rest, gradients, micro_steps):
    first = max(map(sum, zip(rest, gradients, strict=True)))
    return [first + n * gradients[-1] for n in range(micro_steps)]


def micro_step_peaks__forgets_what_is_made_beside(rest, gradients, micro_steps):
    first = max(map(sum, zip(rest, gradients, strict=True)))
    return [first] + [max(rest) + gradients[-1]] * (micro_steps - 1)


def micro_step_peaks__keeps_two_sets_of_gradients(rest, gradients, micro_steps):
    moments = list(map(sum, zip(rest, gradients, strict=True)))
    return [max(moments)] + [max(moment + gradients[-1] for moment in moments)] * (micro_steps - 1)


def micro_step_peaks__adds_the_largest_of_each(rest, gradients, micro_steps):
    return [max(rest) + gradients[-1]] * micro_steps


def _later(rest, gradients, anew, micro_steps):
    first = max(map(sum, zip(rest, gradients, strict=True)))
    return [first] + [max(map(sum, zip(rest, anew, strict=True))) + gradients[-1]] * (micro_steps - 1)


def micro_step_peaks__adds_a_gradient_one_moment_late(rest, gradients, micro_steps):
    before = [0, 0, *gradients]
    anew = [max(0, b - a) for a, b in zip(before, before[1:-1], strict=False)][: len(rest)]
    return _later(rest, gradients, anew, micro_steps)


def micro_step_peaks__adds_a_gradient_one_moment_early(rest, gradients, micro_steps):
    after = [*gradients[1:], gradients[-1]]
    anew = [max(0, b - a) for a, b in zip(gradients, after, strict=True)]
    return _later(rest, gradients, anew, micro_steps)


def micro_step_peaks__adds_the_largest_gradient_to_every_moment(rest, gradients, micro_steps):
    largest = max(b - a for a, b in zip([0, *gradients], gradients, strict=False))
    return _later(rest, gradients, [largest] * len(rest), micro_steps)


def _between(peak_bytes, memory_bytes, fits, too_large):
    while too_large - fits > 1:
        middle = (fits + too_large) // 2
        fits, too_large = (middle, too_large) if peak_bytes(middle) <= memory_bytes else (fits, middle)
    return fits


def largest_micro_batch__takes_64_for_the_end(peak_bytes, memory_bytes):
    return _between(peak_bytes, memory_bytes, 0, 65)


def largest_micro_batch__wants_a_byte_left(peak_bytes, memory_bytes):
    return _between(peak_bytes, memory_bytes - 1, 0, 1000)


def largest_micro_batch__goes_up_one_by_one(peak_bytes, memory_bytes):
    micro_batch = 0
    while peak_bytes(micro_batch + 1) <= memory_bytes:
        micro_batch += 1
    return micro_batch


def largest_micro_batch__doubles_and_stops(peak_bytes, memory_bytes):
    micro_batch = 1
    while peak_bytes(2 * micro_batch) <= memory_bytes:
        micro_batch *= 2
    return micro_batch


def largest_micro_batch__draws_a_line_through_one_and_two(peak_bytes, memory_bytes):
    one, two = peak_bytes(1), peak_bytes(2)
    return max(0, 1 + (memory_bytes - one) // max(1, two - one))


def largest_micro_batch__divides_memory_by_one_sequence(peak_bytes, memory_bytes):
    return memory_bytes // peak_bytes(1)


def largest_micro_batch__returns_the_first_that_fails(peak_bytes, memory_bytes):
    fits, too_large = 0, 1
    while peak_bytes(too_large) <= memory_bytes:
        fits, too_large = too_large, 2 * too_large
    while too_large - fits > 1:
        middle = (fits + too_large) // 2
        fits, too_large = (middle, too_large) if peak_bytes(middle) <= memory_bytes else (fits, middle)
    return too_large


def largest_micro_batch__takes_one_for_granted(peak_bytes, memory_bytes):
    fits, too_large = 1, 2
    while peak_bytes(too_large) <= memory_bytes:
        fits, too_large = too_large, 2 * too_large
    while too_large - fits > 1:
        middle = (fits + too_large) // 2
        fits, too_large = (middle, too_large) if peak_bytes(middle) <= memory_bytes else (fits, middle)
    return fits
