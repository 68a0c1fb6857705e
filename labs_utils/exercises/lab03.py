"""Lab 03, batch size and gradient accumulation: held against full batches, real samplers and measured runs."""

from __future__ import annotations

from functools import partial

from labs_utils.exercises.accumulation import accumulated, compare_gradient, draw_accumulations, full_batch
from labs_utils.exercises.batch_plans import PLAN_KEYS, compare_plan, draw_plans, searched_plan
from labs_utils.exercises.contract import Exercise
from labs_utils.exercises.kept import compare_each, in_each
from labs_utils.exercises.micro_batches import (
    compare_peaks,
    compare_search,
    draw_runs,
    draw_searches,
    largest_that_fits,
    micro_step_peaks_of,
    searched,
)

batch_plan = Exercise(
    id="lab03.batch_plan",
    points=2,
    draw=draw_plans,
    call=in_each(lambda fn, part: fn(*(part[key] for key in PLAN_KEYS))),
    truth=in_each(searched_plan),
    compare=partial(compare_each, compare_plan),
    hints=(
        "tokens in a step = micro_batch * seq_len * grad_accum * world_size; everything but two factors is given.",
        "At least means rounding up: -(-a // b) is a / b, rounded up.",
        "First grad_accum, with the largest micro-batch; then the smallest micro_batch that is enough with it.",
    ),
)

accumulate = Exercise(
    id="lab03.accumulate",
    points=4,
    draw=draw_accumulations,
    call=in_each(accumulated),
    truth=in_each(partial(accumulated, full_batch)),
    compare=partial(compare_each, compare_gradient),
    hints=(
        "Count the targets of all micro-batches before the first backward: that is the one denominator.",
        'F.cross_entropy(…, reduction="sum") adds up losses without dividing; gradients of sums add up too.',
        "backward() in every micro-step frees what forward kept; one backward at the end keeps it all.",
    ),
    forbidden=("labs_utils", "accelerate", "transformers", "num_items_in_batch"),
)

micro_step_peaks = Exercise(
    id="lab03.micro_step_peaks",
    points=3,
    draw=draw_runs,
    call=in_each(lambda fn, part: fn(part["rest"], part["gradients"], part["run"]["grad_accum"])),
    truth=in_each(micro_step_peaks_of),
    compare=partial(compare_each, compare_peaks),
    hints=(
        "Go moment by moment: what would be in use then in the second micro-step? Then take the largest.",
        "All gradients together take gradients[-1]; from the second micro-step on they are there at every moment.",
        "Where gradients[i] is larger than gradients[i - 1], backward makes that much anew, and frees it once added.",
    ),
    forbidden=("labs_utils",),
)

largest_micro_batch = Exercise(
    id="lab03.largest_micro_batch",
    points=3,
    draw=draw_searches,
    call=in_each(searched),
    truth=in_each(largest_that_fits),
    compare=partial(compare_each, compare_search),
    hints=(
        "First find a micro-batch that doesn't fit, in few calls: double until it happens.",
        "Then one end fits and the other doesn't. Try the middle, and keep the half whose ends differ.",
        "For small micro-batches the peak may not move at all, so two of them don't tell how it grows.",
    ),
    forbidden=("labs_utils",),
)

EXERCISES = (batch_plan, accumulate, micro_step_peaks, largest_micro_batch)
