"""`lab01.peak`: when and how high a step's memory peaks, held against dry runs that peak at different moments."""

from __future__ import annotations

from functools import cache
from json import dumps, loads
from typing import Any

from labs_utils.answers.dry_run import NoMemoryMode, dry_run
from labs_utils.exercises.contract import Mark
from labs_utils.exercises.marking import close, compare_bytes, exercise_of_situations, mean_mark
from labs_utils.exercises.saved_bytes import layer_saved_bytes
from labs_utils.model_config import SIZES
from labs_utils.run import Run

PEAK_TOLERANCE = 0.01  # the small terms that the question leaves out: final norm, token ids, rotary tables


def draw_runs(rng) -> dict:
    """Five runs: a peak in each place, with and without checkpointing, nearly each term of it more than the tolerance.

    A layer's backward is fullest in the last layer where layers keep more than their gradients take, else in the first.
    Sizes differ from run to run; `vocab` and `tokens` are multiples of the hidden size.
    """
    settings = {
        "large vocabulary": {"vocab": 60, "tokens": 2.5, "checkpointed": False},
        "long sequence": {"vocab": 0.1, "tokens": 5, "checkpointed": False},
        "long sequence, checkpointed": {"vocab": 0.2, "tokens": 28, "layers": 2},
        "medium sequence, checkpointed": {"vocab": 8, "tokens": 1.2, "layers": 3},
        "short sequence": {"vocab": 25, "tokens": 0.05, "checkpointed": bool(rng.integers(2))},
    }
    sizes = zip(rng.permutation([6, 8, 10, 12, 14]), rng.permutation([1, 1, 2, 2, 3]), strict=True)
    return {
        name: draw_run(rng, 128 * int(hidden), int(micro_batch), **settings[name])
        for name, (hidden, micro_batch) in zip(settings, sizes, strict=True)
    }


def draw_run(
    rng, hidden: int, micro_batch: int, vocab: float, tokens: float, layers: int = 0, checkpointed: bool = True
) -> dict:
    """A run as the student gets it: sizes, and the bytes that one layer saves, found over fake tensors."""
    kv_heads = 2 ** int(rng.integers(1, 3))
    run = {
        "hidden_size": hidden,
        "intermediate_size": hidden // 16 * int(rng.integers(80, 96)),
        "num_hidden_layers": layers or int(rng.integers(2, 4)),
        "num_attention_heads": kv_heads * 2,
        "num_key_value_heads": kv_heads,
        "head_dim": 128,
        "vocab_size": round(vocab * rng.uniform(0.9, 1.1) * hidden),
        "seq_len": round(tokens * rng.uniform(0.9, 1.1) * hidden / micro_batch),
        "micro_batch": micro_batch,
        "checkpointed": checkpointed,
    }
    shape = parse(run).model
    with NoMemoryMode():
        saved = layer_saved_bytes(shape.model_dump(), run["micro_batch"] * run["seq_len"])
    sizes = {"parameters": shape.parameters, "layer_parameters": shape.layer_parameters, "layer_saved_bytes": saved}
    return {**run, **sizes}


def parse(run: dict) -> Run:
    """The course's `Run` of a run as the student gets it."""
    checkpointing = "full" if run["checkpointed"] else "none"
    model = {size: run[size] for size in SIZES if size in run}
    return Run(model=model, seq_len=run["seq_len"], micro_batch=run["micro_batch"], checkpointing=checkpointing)


def phase_of(parts: dict[str, int]) -> str:
    """The phase of a moment with these live bytes: the loss while there are logits, the end once all gradients exist.

    >>> phase_of({"parameters": 10, "gradients": 4, "logits": 0})
    'layer'
    """
    if parts["logits"]:
        return "loss"
    return "end" if parts["gradients"] == parts["parameters"] else "layer"


@cache
def dry_run_peak(run_json: str) -> dict:
    """The phase and the bytes of a dry run's peak on a CPU, of a run as `draw_run` makes it."""
    parts = dry_run(parse(loads(run_json))).parts
    return {"phase": phase_of(parts), "bytes": sum(parts.values())}


def compare_peak(situation: dict, got: Any, expected: dict) -> Mark:
    """Half for the phase, half for the bytes."""
    if type(got) is not dict or got.keys() != expected.keys():
        return close(situation, got, expected)
    phase = close(situation, got["phase"], expected["phase"])
    phase = phase._replace(
        sentence=f"{phase.sentence}, where {expected['bytes']:,} bytes are in use", cause=f"not {got['phase']}"
    )
    nbytes = compare_bytes(
        situation,
        got["bytes"],
        expected["bytes"],
        rel=PEAK_TOLERANCE,
        too_few="weights, moments, kept activations: is one of them left out, or a phase?",
        too_many="only what is alive at the same moment adds up: there are no gradients yet in the loss, "
        "no logits later",
    )
    return mean_mark({"phase": phase, "bytes": nbytes})


EXERCISE = exercise_of_situations(
    id="lab01.peak",
    cases=2,
    points=3,
    minutes=25,
    difficulty="hard",
    draw=draw_runs,
    call=lambda fn, run: fn(run),
    truth=lambda run: dry_run_peak(dumps(run)),
    compare=compare_peak,
    hints={
        "not loss": (
            "The loss isn't fullest here. It has no gradients yet; on top of what is kept come 3 * 4 * vocab_size "
            "bytes a token."
        ),
        "not layer": (
            "A layer's backward isn't fullest here. In that of layer i the layers above are done: "
            "num_hidden_layers - i of them."
        ),
        "not end": "The end isn't fullest here: all gradients are there, and nothing of the tokens any more.",
        "too few": (
            "Weights and moments take 2 + 4 bytes a parameter, at every moment. Is one of them left out, or what "
            "layers keep?"
        ),
        "too many": (
            "Compute the bytes of each moment by itself: gradients are not there in the loss, logits not later."
        ),
        "units": "Bytes are asked.",
    },
    why="Activations fall while gradients rise, so the largest sum is at one of few moments. "
    "Comparing those moments is all that a peak needs.",
    forbidden=("labs_utils", "dry_run", "estimate"),
)
