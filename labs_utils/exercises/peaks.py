"""Runs whose memory peaks at different moments of the step, and where and how high a dry run finds the peak."""

from __future__ import annotations

from functools import cache
from json import loads

from labs_utils.answers.dry_run import NoMemoryMode, dry_run
from labs_utils.exercises.kept import layer_saved_bytes
from labs_utils.run import Run


def draw_runs(rng) -> dict:
    """Three runs, one for each place where a peak can be, by a clear margin."""
    return {
        "large vocabulary": draw_run(rng, vocab_size=1000 * int(rng.integers(80, 129)), seq_len=4096),
        "long sequence": draw_run(rng, vocab_size=500 * int(rng.integers(1, 4)), seq_len=16384, checkpointed=True),
        "short sequence": draw_run(rng, vocab_size=1000 * int(rng.integers(32, 65)), seq_len=128),
    }


def draw_run(rng, **fixed) -> dict:
    """A run as the student gets it: sizes, and the bytes that one layer saves, found over fake tensors."""
    kv_heads = 2 ** int(rng.integers(1, 4))
    run = {
        "hidden_size": 256 * int(rng.integers(4, 9)),
        "intermediate_size": 256 * int(rng.integers(12, 24)),
        "num_hidden_layers": int(rng.integers(2, 4)),
        "num_attention_heads": kv_heads * 2,
        "num_key_value_heads": kv_heads,
        "head_dim": 128,
        "micro_batch": int(rng.integers(1, 3)),
        "checkpointed": bool(rng.integers(2)),
        **fixed,
    }
    shape = parse(run).model
    with NoMemoryMode():
        saved = layer_saved_bytes(shape.model_dump(), run["micro_batch"] * run["seq_len"])
    sizes = {"parameters": shape.parameters, "layer_parameters": shape.layer_parameters, "layer_saved_bytes": saved}
    return {**run, **sizes}


def parse(run: dict) -> Run:
    """The course's `Run` of a run as the student gets it."""
    checkpointing = "full" if run["checkpointed"] else "none"
    return Run(model=run, seq_len=run["seq_len"], micro_batch=run["micro_batch"], checkpointing=checkpointing)


def phase_of(parts: dict[str, int]) -> str:
    """Which moment live bytes by part belong to: the loss while there are logits, the end once all gradients exist."""
    if parts["logits"]:
        return "loss"
    return "end" if parts["gradients"] == parts["parameters"] else "layer"


@cache
def dry_run_peak(run_json: str) -> dict:
    """The phase and the bytes of a dry run's peak on a CPU, of a run as `draw_run` makes it."""
    parts = dry_run(parse(loads(run_json))).parts
    return {"phase": phase_of(parts), "bytes": sum(parts.values())}
