"""`lab03.micro_step_peaks`: the peak of each micro-step, held against steps that run, and one recording made up."""

from __future__ import annotations

from functools import partial
from json import dumps
from typing import Any

from labs_utils.exercises.contract import Mark
from labs_utils.exercises.lab03.tracked_run import draw_width, small_model, tracked_micro_steps
from labs_utils.exercises.marking import close, compare_bytes, exercise_of_situations, mean_mark

PEAK_TOLERANCE = 0.005  # tensors of a few bytes that come and go beside a gradient


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

    The larger the gradient, the less there is of everything else. The last moment makes one, too.
    """
    made = [1000 * int(n) + int(rng.integers(1000)) for n in rng.permutation([100, 130, 160, 190, 220])]
    rest, gradients = [int(rng.integers(100_000, 300_000))], [0]
    for anew in made:
        rest += [int(rng.integers(900_000, 920_000)) - anew // 2, int(rng.integers(100_000, 300_000))]
        gradients += [gradients[-1] + anew, gradients[-1] + anew]
    return {"run": {"grad_accum": int(rng.integers(3, 6))}, "gradients": gradients[:-1], "rest": rest[:-1]}


def draw_run(rng, width: int, vocab_size: int, **settings) -> dict:
    """A run of a small model, and what was recorded in its first micro-step."""
    run = {"model": small_model(width, 1, vocab_size), "grad_accum": int(rng.integers(2, 5)), **settings}
    moments = list(tracked_micro_steps(dumps(run)).moments(("0",)))
    gradients = [moment.parts["gradients"] for moment in moments]
    rest = [moment.live_bytes - held for moment, held in zip(moments, gradients, strict=True)]
    return {"run": run, "gradients": gradients, "rest": rest}


def peaks_of(situation: dict) -> list[int]:
    """The peak of each micro-step: of a step that really runs, or of a recording that no run made."""
    run = situation["run"]
    if "model" not in run:
        return simulated_peaks(**situation)
    timeline = tracked_micro_steps(dumps(run))
    return [timeline.peak(str(number)).live_bytes for number in range(run["grad_accum"])]


def simulated_peaks(run: dict, gradients: list[int], rest: list[int]) -> list[int]:
    """What is in use moment by moment: a gradient that is made is the first, or is there beside the sum of others.

    >>> simulated_peaks({"grad_accum": 2}, gradients=[0, 10, 15], rest=[7, 1, 1])
    [16, 26]
    """
    held, peaks = 0, []
    for number in range(run["grad_accum"]):
        in_use, made = [], 0
        for others, all_made in zip(rest, gradients, strict=True):
            anew, made = all_made - made, all_made
            in_use.append(others + held + anew)
            held += anew if number == 0 else 0
        peaks.append(max(in_use))
    return peaks


def compare_peaks(situation: dict, got: Any, expected: list) -> Mark:
    """Nothing without the second micro-step, which is the question; all of them for full marks."""
    if type(got) is not list or len(got) != len(expected):
        return close(situation, got, expected)._replace(cause="length")
    compare_peak = partial(
        compare_bytes,
        rel=PEAK_TOLERANCE,
        too_few="which gradients are there while it runs, and what is made beside them before it is added?",
        too_many="what is in use at the same moment? The first peak may hold gradients already",
    )
    marks = {
        f"micro-step {n}": compare_peak(situation, one, other)
        for n, (one, other) in enumerate(zip(got, expected, strict=True), start=1)
    }
    mean = mean_mark(marks)
    return mean if marks["micro-step 2"].score == 1 else mean._replace(score=0.0)


EXERCISE = exercise_of_situations(
    id="lab03.micro_step_peaks",
    points=3,
    minutes=20,
    difficulty="medium",
    draw=draw_runs,
    call=lambda fn, situation: fn(situation["rest"], situation["gradients"], situation["run"]["grad_accum"]),
    truth=peaks_of,
    compare=compare_peaks,
    hints={
        "length": "One peak for each micro-step, in order.",
        "too few": (
            "All gradients together take gradients[-1]; from the second micro-step on they are there at every "
            "moment. Where gradients[i] is larger than gradients[i - 1], backward makes that much anew beside "
            "them."
        ),
        "too many": (
            "Go moment by moment: what would be in use then? What is made anew is freed once it has been added; "
            "from the second micro-step on nothing grows any more."
        ),
        "units": "Bytes are asked.",
    },
    why="After the first backward the gradients stay, so every later micro-step starts from a higher floor. "
    "That is the price of accumulation, and it is paid once.",
    forbidden=("labs_utils",),
)
