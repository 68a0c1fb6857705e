"""Micro-steps and micro-batches of small runs: what they hold, measured on this machine, and which of them fit."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from functools import cache, partial
from json import dumps, loads
from typing import Any

import torch

from labs_utils.answers.estimate import estimate
from labs_utils.device import CPU
from labs_utils.exercises.comparing import close
from labs_utils.exercises.kept import compare_bytes, mean_mark
from labs_utils.profiling.tracker import MemoryTracker
from labs_utils.run import Run
from labs_utils.timeline import Timeline
from labs_utils.training.step import TrainingStep
from labs_utils.training.tracked import warm_up, watch_optimizer, watch_parts

PEAK_TOLERANCE = 0.005  # tensors of a few bytes that come and go beside a gradient
MOST_CALLS = 20
UNESTIMATED_BYTES = 64  # tensors of one number, which a measured peak has and an estimated one hasn't


@cache
def measured(run_json: str) -> Timeline:
    """A run's step on this CPU: its micro-steps are the phases "0", "1", and so on, and "optimizer" comes last."""
    run, tracker = Run.parse(loads(run_json)), MemoryTracker()
    with torch.enable_grad(), tracker:  # a student's code may have turned gradients off
        step = TrainingStep(run, "cpu")
        watch_parts(tracker, step)
        warm_up(step, tracker, CPU, 1)
        watch_optimizer(tracker, step)
        for number in range(run.grad_accum):
            step.micro_step(lambda phase, number=number: tracker.phase(str(number)))
        tracker.phase("optimizer")
        step.optimizer_step()
        tracker.phase("after")
    return tracker.timeline


def draw_runs(rng) -> dict:
    """Recordings of three runs: many activations; few, so that gradients decide; a checkpointed one. One made up."""
    long, checkpointed = draw_width(rng), draw_width(rng)
    long_len, checkpointed_len = (int(width * rng.uniform(3, 6)) for width in (long, checkpointed))
    vocab_size, checkpointed_vocab = 1000 * int(rng.integers(5, 9)), checkpointed * int(rng.integers(2, 5))
    return {
        "long sequence": draw_run(rng, long, vocab_size=64, seq_len=long_len),
        "short sequence": draw_run(rng, draw_width(rng), vocab_size=vocab_size, seq_len=int(rng.integers(2, 5))),
        "checkpointed": draw_run(
            rng, checkpointed, vocab_size=checkpointed_vocab, seq_len=checkpointed_len, checkpointing="full"
        ),
        "sharp moments": draw_sharp(rng),
    }


def draw_sharp(rng) -> dict:
    """A recording that no run made: the moments at which gradients are made stand out from those around them.

    The larger the gradient, the less there is of everything else.
    """
    made = [1000 * int(n) + int(rng.integers(1000)) for n in rng.permutation([100, 130, 160, 190, 220])]
    rest, gradients = [int(rng.integers(100_000, 300_000))], [0]
    for anew in made:
        rest += [int(rng.integers(900_000, 920_000)) - anew // 2, int(rng.integers(100_000, 300_000))]
        gradients += [gradients[-1] + anew, gradients[-1] + anew]
    return {"run": {"grad_accum": int(rng.integers(3, 6))}, "gradients": gradients, "rest": rest}


def draw_width(rng) -> int:
    return 32 * int(rng.integers(2, 5))


def draw_run(rng, width: int, vocab_size: int, **settings) -> dict:
    """A run of a small model, and what was recorded in its first micro-step."""
    model = {"hidden_size": width, "intermediate_size": 3 * width, "num_hidden_layers": 1, "num_attention_heads": 4}
    run = {"model": {**model, "vocab_size": vocab_size}, "grad_accum": int(rng.integers(2, 5)), **settings}
    moments = list(measured(dumps(run)).moments(("0",)))
    gradients = [moment.parts["gradients"] for moment in moments]
    rest = [moment.live_bytes - held for moment, held in zip(moments, gradients, strict=True)]
    return {"run": run, "gradients": gradients, "rest": rest}


def micro_step_peaks_of(part: dict) -> list[int]:
    run = part["run"]
    if "model" not in run:
        return simulated_peaks(part)
    timeline = measured(dumps(run))
    return [timeline.peak(str(number)).live_bytes for number in range(run["grad_accum"])]


def simulated_peaks(part: dict) -> list[int]:
    """What is in use moment by moment: a gradient that is made is the first, or is there beside the sum of others."""
    held, peaks = 0, []
    for number in range(part["run"]["grad_accum"]):
        in_use, made = [], 0
        for rest, all_made in zip(part["rest"], part["gradients"], strict=True):
            anew, made = all_made - made, all_made
            in_use.append(rest + held + anew)
            held += anew if number == 0 else 0
        peaks.append(max(in_use))
    return peaks


def compare_peaks(got: Any, expected: list) -> tuple[float, str]:
    """Nothing without the second micro-step, which is the question; all of them for full marks."""
    if type(got) is not list or len(got) != len(expected):
        return close(None, got, expected)
    few = "which gradients are there while it runs, and what is made beside them before it is added?"
    many = "what is in use at the same moment? The first peak may hold gradients already"
    marks = {
        f"micro-step {n}": compare_bytes(one, other, PEAK_TOLERANCE, few, many)
        for n, (one, other) in enumerate(zip(got, expected, strict=True), start=1)
    }
    score, sentence = mean_mark(marks)
    return score if marks["micro-step 2"][0] == 1 else 0.0, sentence


def draw_searches(rng) -> dict:
    """A device that many sequences fit on to the last byte, one that just one fits on, and one too small for any."""
    return {
        "many fit": draw_search(rng, int(rng.integers(65, 110))),
        "one fits": draw_search(rng, 1),
        "none fits": draw_search(rng, 0),
    }


def draw_search(rng, fits: int) -> dict:
    """A run whose peak is at the end of backward for small micro-batches, and memory for `fits` sequences."""
    width = draw_width(rng)
    layers, vocab_size = int(rng.integers(1, 3)), 100 * int(rng.integers(2, 6))
    model = {"hidden_size": width, "intermediate_size": 3 * width, "num_hidden_layers": layers}
    settings = {"model": {**model, "num_attention_heads": 4, "vocab_size": vocab_size}}
    settings["seq_len"] = 2 * int(rng.integers(2, 6)) if fits > 1 else 96
    enough = peak_bytes(settings, fits) if fits else 0
    spare = 0 if fits > 1 else rng.uniform(0.2, 0.8) * (peak_bytes(settings, fits + 1) - enough)
    return {"run": settings, "memory_bytes": int(enough + spare)}


def peak_bytes(settings: dict, micro_batch: int) -> int:
    """The estimated peak of a run with that micro-batch, on a CPU: what its tensors take."""
    return estimated_bytes(dumps({**settings, "micro_batch": micro_batch}))


@cache
def estimated_bytes(run_json: str) -> int:
    with torch.enable_grad():
        return estimate(Run.parse(loads(run_json)), CPU).peak_bytes


def searched(function: Callable, part: dict) -> dict:
    """What `function` finds, and with how many calls."""
    tried = []

    def counted(micro_batch: int) -> int:
        tried.append(micro_batch)
        return peak_bytes(part["run"], int(micro_batch))

    return {"micro_batch": function(counted, part["memory_bytes"]), "calls": len(tried)}


def largest_that_fits(part: dict) -> int:
    """The largest micro-batch within the memory: searched with the estimate, and the end of that measured."""
    found = bisect_right(range(1, 1000), part["memory_bytes"], key=partial(peak_bytes, part["run"]))
    while fits(part, found + 1):
        found += 1
    while found and not fits(part, found):
        found -= 1
    return found


def fits(part: dict, micro_batch: int) -> bool:
    timeline = measured(dumps({**part["run"], "micro_batch": micro_batch}))
    return timeline.peak("0", "optimizer").live_bytes <= part["memory_bytes"] + UNESTIMATED_BYTES


def compare_search(got: dict, expected: int) -> tuple[float, str]:
    """Half for a right answer that took too many calls."""
    score, sentence = close(None, got["micro_batch"], expected)
    if score < 1:
        return score, f"{sentence}: does it fit, and does one more not fit?"
    if got["calls"] > MOST_CALLS:
        return 0.5, f"right, but with {got['calls']} calls; {MOST_CALLS} are allowed: halve what is left each time"
    return score, sentence
