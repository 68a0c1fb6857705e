"""Wrong answers to Lab 02's exercises, and the causes that `compare` names."""

HINTED = {
    "lab02.checkpoint": {
        "draws_new_dropout_masks": "the gradients with dropout",
        "leaves_the_old_random_state": "random numbers drawn after backward",
        "memory_keeps_a_copy_of_its_output": "memory",
        "gives_parameters_no_gradients": "the gradients without dropout",
        "returns_the_first_gradient_only": "the gradients of several inputs, in a larger graph",
    },
    "lab02.policy_bytes": {
        "leaves_out_the_result_of_down": "too few",
        "keeps_the_input_in_fp32": "too many",
        "counts_gibibytes": "units",
    },
    "lab02.cheapest_policy": {
        "always_prefers_to_keep_attention": "too dear",
        "takes_the_last_of_equals": "a tie",
        "compares_kept_bytes_with_the_limit": "too large",
    },
    "lab02.segment_layers": {
        "is_the_square_root": "more",
        "recomputes_everything_at_once": "fewer",
        "is_a_root_that_isnt_whole": "no size",
    },
}
