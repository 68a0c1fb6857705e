"""`lab05.offloaded_seconds`: the seconds of a step whose gradients go down one by one, held against one played out."""

from __future__ import annotations

import heapq
from typing import Any

from labs_utils.exercises.contract import Mark
from labs_utils.exercises.marking import AS_EXPECTED, exercise_of_situations, with_cause

SECONDS_TOLERANCE = 1e-6


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


def played_seconds(forward: float, backward: list[float], numels: list[int], link: float, adam: float) -> float:
    """The step as a queue of events: a gradient is there, the link is free, Adam is done.

    >>> played_seconds(forward=1.0, backward=[1.0, 1.0], numels=[50, 50], link=200.0, adam=100.0)
    5.5
    """
    now, events, waiting, on_host, link_is_free = 0.0, [], [], 0, True
    ready = forward
    for number, seconds in enumerate(backward):
        ready += seconds
        heapq.heappush(events, (ready, "gradient", number))
    while events:
        now, what, number = heapq.heappop(events)
        if what == "gradient":
            waiting.append(number)
        if what == "arrived":
            on_host, link_is_free = on_host + 1, True
        if what == "updated":
            heapq.heappush(events, (now + 2 * sum(numels) / link, "weights are back", 0))
        if on_host == len(numels) and what == "arrived":
            heapq.heappush(events, (now + sum(numels) / adam, "updated", 0))
        if link_is_free and waiting:
            sent, link_is_free = waiting.pop(0), False
            heapq.heappush(events, (now + 2 * numels[sent] / link, "arrived", sent))
    return now


def mistakes_at(situation: dict, truth: float) -> dict[str, float]:
    """What some mistakes would give, by their cause."""
    numel, link = sum(situation["numels"]), situation["link"]
    computed = situation["forward"] + sum(situation["backward"])
    return {
        "no way up": truth - 2 * numel / link,
        "added up": computed + 4 * numel / link + numel / situation["adam"],
        "all hidden": computed + numel / situation["adam"],
    }


def compare_seconds(situation: dict, got: Any, truth: float) -> Mark:
    """Right to rounding, or which of two rules is likely broken."""
    if type(got) not in (int, float):
        return Mark(0.0, f"expected seconds, got {got!r}"[:200])
    if abs(got - truth) <= SECONDS_TOLERANCE * truth:
        return AS_EXPECTED
    early = got < truth
    too_few = "what can't begin before something else has ended?"
    too_many = "what goes on while something else does?"
    mark = Mark(
        0.0,
        f"expected {truth:.6g} s, got {got:.6g} s: {too_few if early else too_many}",
        "too early" if early else "too late",
    )
    return with_cause(mark, got, mistakes_at(situation, truth), rel=SECONDS_TOLERANCE)


EXERCISE = exercise_of_situations(
    id="lab05.offloaded_seconds",
    points=3,
    minutes=20,
    difficulty="medium",
    draw=draw_schedules,
    call=lambda fn, situation: fn(*(situation[key] for key in ("forward", "backward", "numels", "link", "adam"))),
    truth=lambda situation: played_seconds(**situation),
    compare=compare_seconds,
    hints={
        "no way up": "After Adam all new weights go up, 2 bytes each, and the step ends when they are there.",
        "added up": (
            "A gradient is sent while the next ones are computed: keep two times, when backward has made it, and "
            "when the link has sent the one before."
        ),
        "all hidden": "Not all of it is hidden: the last gradient is sent after backward has ended.",
        "too early": "A gradient begins its way at the later of two times: when it is made, and when the link is free.",
        "too late": (
            "After the last gradient has arrived: Adam over all parameters, then all weights up. Gradients cross "
            "in bf16, 2 bytes each."
        ),
    },
    why="Sending overlaps with backward, so it ends at the later of two times. "
    "What can't overlap is added: Adam on the CPU, and the weights' way back.",
    forbidden=("labs_utils",),
)
