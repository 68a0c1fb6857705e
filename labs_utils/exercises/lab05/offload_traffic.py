"""`lab05.offload_traffic`: bytes that go to the host and back in a step, held against DeepSpeed's own copies."""

from __future__ import annotations

from typing import Any

from labs_utils.exercises.contract import Mark
from labs_utils.exercises.marking import close, exercise_of_situations
from labs_utils.workers.silent_peers import lone_rank

BYTES_TOLERANCE = 1e-9  # as far as the order of operations changes a float
QUESTIONS = {
    "down": "in which type do gradients go down, and what else goes down when they are accumulated?",
    "up": "what comes up after the update, and what in a micro-step that adds to gradients on the host?",
}


def draw_steps(rng) -> dict:
    """Models whose parameters all lie on one rank each, so that everything divides."""
    steps = {}
    for name, stage, micro_steps in (
        ("stage 1", 1, 1),
        ("stage 1, accumulated", 1, int(rng.integers(2, 6))),
        ("stage 2", 2, 1),
        ("stage 2, two micro-steps", 2, 2),
        ("stage 2, accumulated", 2, int(rng.integers(3, 6))),
    ):
        ranks = int(rng.integers(2, 9))
        numels = [2 * int(rng.integers(100, 900))] * (ranks * int(rng.integers(1, 4)))
        steps[name] = {"numels": numels, "stage": stage, "world_size": ranks, "grad_accum": micro_steps}
    return steps


def counted_traffic(situation: dict) -> dict[str, int]:
    """What DeepSpeed copies to the host and back in a step."""
    settings = (situation[key] for key in ("numels", "stage", "world_size", "grad_accum"))
    moved = lone_rank(*settings, offload="optimizer")["moved"]
    return {"down": moved["device_to_host"], "up": moved["host_to_device"]}


def compare_traffic(situation: dict, got: Any, truth: dict) -> Mark:
    """Half for each direction."""
    mark = close(situation, got, truth, rel=BYTES_TOLERANCE)
    wrong = mark.sentence.partition(":")[0]
    if wrong not in QUESTIONS:
        return mark
    few = type(got[wrong]) in (int, float) and got[wrong] < truth[wrong]
    cause = f"{wrong} too {'little' if few else 'much'}"
    return mark._replace(sentence=f"{mark.sentence}: {QUESTIONS[wrong]}", cause=cause)


EXERCISE = exercise_of_situations(
    id="lab05.offload_traffic",
    points=3,
    minutes=20,
    difficulty="medium",
    draw=draw_steps,
    call=lambda fn, situation: fn(
        sum(situation["numels"]), situation["stage"], situation["world_size"], situation["grad_accum"]
    ),
    truth=counted_traffic,
    compare=compare_traffic,
    hints={
        "down too little": (
            "In a step with one micro-step gradients go down in fp32. At stage 2 with several, the sum goes down "
            "in bf16 after each micro-step, too."
        ),
        "down too much": (
            "Each rank moves only its part. Stage 1 has all gradients on the GPU until the last micro-step, so "
            "accumulation changes nothing there."
        ),
        "up too little": "At stage 2 the sum comes up again in every micro-step but the first, to be added to.",
        "up too much": "After the update only new weights come up, in bf16, each rank's part.",
    },
    why="A rank sends the gradients of its share down and gets new weights back, once a step. "
    "Only stage 2 adds gradients up on the host, and pays again at each micro-step.",
    forbidden=("labs_utils", "deepspeed", "moved_bytes", "offload_seconds", "estimate", "launch"),
)
