"""Reported cases that Lab 02 answers, by number: the cell, the name of its source there, and right figures."""

ANSWERED = {
    "PF-039": (
        "wrong-reentrant",
        "huggingface/transformers/issues/26221",
        "gradient_checkpointing_kwargs",
        "enable_input_require_grads",
    ),
    "PF-041": ("wrong-twice-as-long", "huggingface/peft/issues/1142", "30-33 %", "over twice the time"),
    "PF-043": (
        "wrong-cache",
        "huggingface/transformers/issues/28056",
        "huggingface/transformers/issues/23808",
        "2 × layers × kv_heads × head_dim × tokens × 2 bytes",
        "use_cache=False",
    ),
    "PF-045": ("wrong-autocast", "pytorch/pytorch/issues/141896", "inside the checkpointed function", "cache_enabled"),
    "PF-047": ("wrong-dropout", "pytorch/pytorch/pull/14253", "enformer-pytorch", "bit for bit", "preserve_rng_state"),
    "PF-048": (
        "wrong-all-or-nothing",
        "arxiv.org/abs/2205.05198",
        "80 of 114",
        "70 %",
        "2.7 %",
        "64 of 98",
        "65 %",
        "30-40 %",
    ),
    "PF-051": (
        "wrong-nothing-changed",
        "hiyouga/LlamaFactory/issues/1578",
        "is_gradient_checkpointing",
        "bytes held after forward",
    ),
}
# What a case is about and this machine can show, it shows: in this code cell.
SHOWN_LIVE = {
    "PF-039": "wrong-reentrant-count",
    "PF-041": "cost-table",
    "PF-043": "wrong-cache-table",
    "PF-045": "wrong-autocast-table",
    "PF-047": "write-dropout-live",
    "PF-048": "wrong-flash-table",
    "PF-051": "wrong-nothing-live",
}
