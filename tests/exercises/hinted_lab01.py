"""Wrong answers to Lab 01's exercises, and the causes that `compare` names."""

HINTED = {
    "lab01.state_bytes": {
        "forgets_the_master_copy": "no master",
        "has_one_moment": "one moment",
        "forgets_the_second_gradients": "one set",
        "is_in_gigabytes": "units",
        "counts_sixteen_bytes_whatever_the_recipe": "one recipe",
    },
    "lab01.saved_bytes": {
        "ignores_grouped_heads": "grouped heads",
        "forgets_the_fp32_copies_of_the_norms": "fp32 copies",
        "saves_the_mlp_once": "one of the MLP",
        "adds_attention_scores": "scores",
        "is_34_bytes_a_hidden_unit": "another model",
    },
    "lab01.measure_saved": {
        "counts_every_saved_tensor": "handed over twice",
        "counts_the_parameters": "parameters",
        "takes_the_size_of_the_view": "size of the view",
        "takes_four_bytes_a_number": "four bytes",
    },
    "lab01.peak": {
        "forgets_the_logits": "not layer",
        "has_one_bf16_copy_of_the_logits": "too few",
        "adds_the_moments_together": "too many",
    },
    "lab01.chunked_loss": {
        "is_a_mean_of_means": "empty chunk",
        "is_a_mean_of_means_without_the_empty_ones": "mean of means",
        "divides_by_all_tokens": "all tokens",
        "drops_the_last_chunk": "last chunk",
        "memory_collects_the_chunks": "memory",
    },
}
