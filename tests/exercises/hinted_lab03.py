"""Wrong answers to Lab 03's exercises, and the causes that `compare` names."""

HINTED = {
    "lab03.micro_step_peaks": {
        "gives_only_the_largest": "length",
        "stays_flat_from_the_start": "too few",
        "keeps_two_sets_of_gradients": "too many",
    },
    "lab03.accumulate": {
        "is_a_mean_of_means_without_the_empty_ones": "direction",
        "never_divides": "length",
        "returns_the_last_loss": "loss",
        "takes_a_step": "changed",
        "memory_one_backward_in_ten": "memory",
    },
    "lab03.batch_plan": {
        "rounds_down": "micro_batch",
        "counts_micro_steps_as_steps": "steps",
        "reports_the_target": "tokens_per_step",
    },
    "lab03.largest_micro_batch": {
        "takes_64_for_the_end": "too small",
        "goes_up_one_by_one": "many calls",
        "returns_the_first_that_fails": "too large",
    },
}
