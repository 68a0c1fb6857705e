"""Wrong answers to Lab 05's exercises, and the causes that `compare` names."""

HINTED = {
    "lab05.cpu_offloaded_adam": {
        "sends_gradients_in_fp32": "much down",
        "brings_weights_up_in_fp32": "much up",
        "forgets_to_bring_weights_up": "not moved",
        "has_no_weight_decay": "nearly",
        "forgets_the_first_steps": "far off",
    },
    "lab05.fewest_micro_steps": {
        "rounds_down": "too few",
        "says_one_where_none_is_enough": "none",
        "goes_one_beyond": "too many",
        "gives_up_if_each_is_too_much": "some",
    },
    "lab05.offload_traffic": {
        "is_the_papers": "down too little",
        "forgets_the_other_ranks": "down too much",
        "never_fetches_sums": "up too little",
        "brings_master_weights_up": "up too much",
    },
    "lab05.offloaded_seconds": {
        "adds_everything_up": "added up",
        "hides_all_transfers": "all hidden",
        "forgets_the_way_up": "no way up",
        "sends_fp32": "too late",
        "takes_the_longer_one": "too early",
    },
}
