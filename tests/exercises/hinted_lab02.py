"""Wrong answers to Lab 02's exercises, and the causes that `compare` names."""

HINTED = {
    "lab02.checkpoint": {
        "draws_new_dropout_masks": "the gradients with dropout",
        "leaves_the_old_random_state": "random numbers drawn after backward",
        "gives_parameters_no_gradients": "the gradients without dropout",
        "returns_the_first_gradient_only": "the gradients of several inputs, in a larger graph",
    }
}
