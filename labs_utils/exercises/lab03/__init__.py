"""Lab 03, batch size and gradient accumulation: held against full batches, real samplers and tracked steps."""

from labs_utils.exercises.lab03 import accumulate, batch_plan, largest_micro_batch, micro_step_peaks

EXERCISES = tuple(module.EXERCISE for module in (batch_plan, accumulate, micro_step_peaks, largest_micro_batch))
