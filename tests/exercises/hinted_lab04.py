"""Wrong answers to Lab 04's exercises, and the causes that `compare` names."""

HINTED = {
    "lab04.rank_bytes": {
        "rounds_nothing": "padding",
        "partitions_gradients_at_stage_1": "part",
        "partitions_no_moments": "whole",
    },
    "lab04.step_traffic": {
        "counts_whole_tensors": "whole tensors",
        "takes_an_all_reduce_for_one_pass": "one pass",
        "is_the_papers": "the paper's",
        "reduces_in_every_micro_step": "every micro-step",
        "gathers_weights_once_at_stage_3": "gathered once",
        "reduces_once_at_every_stage": "once a step",
    },
    "lab04.lowest_stage": {
        "divides_everything": "too low",
        "never_says_that_none_fits": "none fits",
        "has_gradients_in_fp32": "too high",
    },
    "lab04.zero1_step": {
        "is_plain_data_parallelism": "state",
        "adds_gradients_up": "off",
        "gathers_nothing": "different",
        "drops_what_does_not_divide": "not moved",
    },
}
