"""Lab 05, ZeRO-Offload: held against DeepSpeed's own copies and steps that are played out; and `host_adam`."""

from __future__ import annotations

import heapq
from functools import partial
from typing import Any

from labs_utils.exercises.comparing import close
from labs_utils.exercises.contract import Exercise
from labs_utils.exercises.host_adam import cpu_offloaded_adam
from labs_utils.exercises.kept import compare_each, in_each
from labs_utils.workers.silent_peers import lone_rank

BYTES_TOLERANCE = 1e-9  # as far as the order of operations changes a float
MOST_MICRO_STEPS = 10**5
SECONDS_TOLERANCE = 1e-6


def draw_steps(rng) -> dict:
    """Models whose parameters all lie on one rank each, so that everything divides."""
    situations = {}
    for name, stage, micro_steps in (
        ("stage 1", 1, 1),
        ("stage 1, accumulated", 1, int(rng.integers(2, 6))),
        ("stage 2", 2, 1),
        ("stage 2, accumulated", 2, int(rng.integers(2, 6))),
    ):
        ranks = int(rng.integers(2, 9))
        numels = [2 * int(rng.integers(100, 900))] * (ranks * int(rng.integers(1, 4)))
        situations[name] = {"numels": numels, "stage": stage, "world_size": ranks, "grad_accum": micro_steps}
    return situations


def counted_traffic(part: dict) -> dict[str, int]:
    """What DeepSpeed copies to the host and back in a step."""
    moved = lone_rank(part["numels"], part["stage"], part["world_size"], part["grad_accum"], "optimizer")["moved"]
    return {"down": moved["device_to_host"], "up": moved["host_to_device"]}


def compare_traffic(got: Any, truth: dict) -> tuple[float, str]:
    """Half for each way."""
    score, sentence = close(None, got, truth, rel=BYTES_TOLERANCE)
    way = sentence.partition(":")[0]
    question = {
        "down": "in which type do gradients go down, and what else goes down when they are accumulated?",
        "up": "what comes up after the update, and what in a micro-step that adds to gradients on the host?",
    }
    return score, f"{sentence}: {question[way]}" if way in question else sentence


offload_traffic = Exercise(
    id="lab05.offload_traffic",
    points=3,
    draw=draw_steps,
    call=in_each(lambda fn, part: fn(sum(part["numels"]), part["stage"], part["world_size"], part["grad_accum"])),
    truth=in_each(counted_traffic),
    compare=partial(compare_each, compare_traffic),
    hints=(
        "Each rank moves only its part. In a step with one micro-step: gradients in fp32 down, weights in bf16 up.",
        "Stage 1 has all gradients on the GPU until the last micro-step, so accumulation changes nothing.",
        "Stage 2 with several micro-steps sends its sum down in bf16 after each, and gets it up in each but the first.",
    ),
    forbidden=("labs_utils", "deepspeed", "moved_bytes", "offload_seconds", "estimate", "launch"),
)


def draw_schedules(rng) -> dict:
    """A link that keeps up, one that doesn't, one that does at first, and an Adam that takes most of the time."""
    count = int(rng.integers(4, 9))
    numels = [int(n) * 10**6 for n in rng.integers(20, 200, size=count)]
    backward = [float(s) for s in rng.uniform(0.05, 0.2, size=count)]
    needed = 2 * sum(numels) / sum(backward)  # the link's rate at which both take equally long
    common = {"forward": float(rng.uniform(0.2, 0.6)), "backward": backward, "numels": numels}
    links = {"a fast link": 6.0, "a slow link": 0.3, "about as fast": 1.0}
    schedules = {name: {**common, "link": factor * needed, "adam": sum(numels) / 0.5} for name, factor in links.items()}
    large_last = {**common, "numels": sorted(numels), "backward": sorted(backward, reverse=True)}
    schedules["the largest last"] = {**large_last, "link": 1.1 * needed, "adam": sum(numels) / 2.0}
    return schedules


def played(part: dict) -> float:
    """The step as a queue of events: a gradient is there, the link is free, Adam is done."""
    now, events, waiting, on_host, link_is_free = 0.0, [], [], 0, True
    ready = part["forward"]
    for number, seconds in enumerate(part["backward"]):
        ready += seconds
        heapq.heappush(events, (ready, "gradient", number))
    while events:
        now, what, number = heapq.heappop(events)
        if what == "gradient":
            waiting.append(number)
        if what == "arrived":
            on_host, link_is_free = on_host + 1, True
        if what == "updated":
            heapq.heappush(events, (now + 2 * sum(part["numels"]) / part["link"], "weights are back", 0))
        if on_host == len(part["numels"]) and what == "arrived":
            heapq.heappush(events, (now + sum(part["numels"]) / part["adam"], "updated", 0))
        if link_is_free and waiting:
            sent, link_is_free = waiting.pop(0), False
            heapq.heappush(events, (now + 2 * part["numels"][sent] / part["link"], "arrived", sent))
    return now


def compare_seconds(got: Any, truth: float) -> tuple[float, str]:
    if type(got) not in (int, float):
        return 0.0, f"expected seconds, got {got!r}"[:200]
    if abs(got - truth) <= SECONDS_TOLERANCE * truth:
        return 1.0, "as expected"
    why = (
        "what can't begin before something else has ended?"
        if got < truth
        else "what goes on while something else does?"
    )
    return 0.0, f"expected {truth:.6g} s, got {got:.6g} s: {why}"


offloaded_seconds = Exercise(
    id="lab05.offloaded_seconds",
    points=3,
    draw=draw_schedules,
    call=in_each(lambda fn, part: fn(part["forward"], part["backward"], part["numels"], part["link"], part["adam"])),
    truth=in_each(played),
    compare=partial(compare_each, compare_seconds),
    hints=(
        "Keep two times: when backward has made the gradient, and when the link has sent the one before.",
        "A gradient begins its way at the later of the two.",
        "After the last has arrived: Adam over all parameters, then all weights up.",
    ),
    forbidden=("labs_utils",),
)


def draw_bounds(rng) -> dict:
    """Bounds that are met at once, after some micro-steps, exactly, after many, only at first, and never.

    Updates are as long as micro-steps, so that what they do to the bound shows. `later`: by how many micro-steps' time
    the offloaded update is above the bound on the other. Where it is below, one micro-step is enough, and more may not
    be.
    """
    situations = {}
    for name, bound, each, later in (
        ("at once", 6.0, 0.0, rng.uniform(1.0, 3.0)),
        ("after some", 1.25, 0.0, rng.uniform(1.0, 4.0)),
        ("after many", 1.02, 0.0, rng.uniform(2.0, 4.0)),
        ("more each time", 1.5, 0.3, rng.uniform(1.0, 4.0)),
        ("only at first", 1.5, 0.6, rng.uniform(-0.7, -0.3)),
        ("never", 1.2, 0.4, rng.uniform(1.0, 4.0)),
    ):
        micro = float(rng.uniform(0.3, 2.0))
        update = float(rng.uniform(1.5, 3.0)) * micro
        once = bound * update + float(later) * micro
        situations[name] = {
            "micro": micro, "update": update, "each": each * micro, "once": once, "bound": bound
        }  # fmt: skip
    for name, each in {"exactly": 0.0, "exactly, more each time": 0.5}.items():  # no rounding: all in powers of two
        micro = 2.0 ** int(rng.integers(-2, 2))
        update = micro * int(rng.integers(3, 7)) / 2
        once = 2 * update + int(rng.integers(2, 9)) * (1 - each) * micro
        situations[name] = {"micro": micro, "update": update, "each": each * micro, "once": once, "bound": 2.0}
    return situations


def added_up(part: dict) -> int:
    """Micro-step after micro-step, until the bound is kept; -1 if it never is."""
    plain_seconds, offloaded = part["update"], part["once"]
    for micro_steps in range(1, MOST_MICRO_STEPS):
        plain_seconds += part["micro"]
        offloaded += part["micro"] + part["each"]
        if offloaded <= part["bound"] * plain_seconds:
            return micro_steps
    return -1


def compare_count(got: Any, truth: int) -> tuple[float, str]:
    expected = truth if truth >= 0 else None
    if got == expected and type(got) is type(expected):
        return 1.0, "as expected"
    if expected is None:
        return 0.0, f"no number of micro-steps is enough here, got {got!r}: what is added in each of them?"[:200]
    if got is None:
        return 0.0, f"{expected:,} micro-steps are enough here, got None: can one be enough where more are not?"
    if type(got) is not int:
        return 0.0, f"expected a whole number of micro-steps, got {got!r}"[:200]
    if got > expected:
        return 0.0, f"{got:,} micro-steps keep the bound, but so do {expected:,}"
    return 0.0, f"expected {expected:,} micro-steps, got {got:,}: that is still too slow"


fewest_micro_steps = Exercise(
    id="lab05.fewest_micro_steps",
    points=2,
    draw=draw_bounds,
    call=in_each(lambda fn, part: fn(part["micro"], part["update"], part["each"], part["once"], part["bound"])),
    truth=in_each(added_up),
    compare=partial(compare_each, compare_count),
    hints=(
        "Both steps are straight lines in the number of micro-steps: where is one `bound` times the other?",
        "Round up to a whole number, at least 1. If `each` is too much for the bound, there is no such number.",
    ),
    forbidden=("labs_utils",),
)

EXERCISES = (cpu_offloaded_adam, offload_traffic, offloaded_seconds, fewest_micro_steps)
