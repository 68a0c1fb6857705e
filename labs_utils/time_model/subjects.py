"""What `labs doctor --full` has timed: the small steps, and the names under which benchmarks are recorded."""

from __future__ import annotations

from labs_utils.run import Run

OF_ALL_RANKS = "host of all ranks: "


HOST_LAYERS = 12


HOST_SHAPE = {
    "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": HOST_LAYERS, "num_attention_heads": 8,
    "num_key_value_heads": 8, "vocab_size": 2048,
}  # fmt: skip


HOST_VARIANTS = {
    "": {}, ", two micro-steps": {"grad_accum": 2}, ", full checkpointing": {"checkpointing": "full"},
    ", selective checkpointing": {"checkpointing": "keep-attention"},
}  # fmt: skip


def host_runs(**fields) -> dict[str, Run]:
    """Steps of a model so small that the GPU waits for the host, by what is done besides."""
    run = {"model": HOST_SHAPE, "seq_len": 128, **fields}
    return {name: Run.parse({**run, **variant}) for name, variant in HOST_VARIANTS.items()}
