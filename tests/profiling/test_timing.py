"""Timing: what is waited for, what counts, and what is made of it. No test depends on how fast this machine is."""

import pytest

from labs_utils.profiling import timing
from labs_utils.profiling.timing import Spread, synchronize, time_call, time_calls


@pytest.fixture
def clock(monkeypatch):
    """A clock that moves only when the test says so."""
    now = [0.0]
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])
    return now


def taking(clock, durations):
    """Work that takes the next of these durations, each time it is called; the calls made so far are in `.calls`."""

    def work():
        clock[0] += durations[work.calls]
        work.calls += 1

    work.calls = 0
    return work


def test_a_spread_has_a_fifth_of_the_values_on_either_side():
    assert Spread.of([5, 1, 4, 2, 3]) == Spread(median=3, p20=2, p80=4)
    assert Spread.of([7.0]) == Spread(median=7, p20=7, p80=7)


def test_the_slow_calls_give_the_low_rates():
    assert Spread(median=2, p20=1, p80=4).rate(8) == Spread(median=4, p20=2, p80=8)


def test_one_call_takes_what_its_work_takes(clock):
    assert time_call(taking(clock, [0.25])) == 0.25


def test_warm_ups_do_not_count(clock):
    work = taking(clock, [100.0, 10.0, *[0.01] * 15])
    assert time_calls(work).median == pytest.approx(0.01) and work.calls == 17


def test_one_slow_call_does_not_move_the_median(clock):
    assert time_calls(taking(clock, [0.01] * 10 + [0.5] + [0.01] * 6)).median == pytest.approx(0.01)


def test_slow_work_is_repeated_three_times(clock):
    work = taking(clock, [60.0] * 20)
    assert time_calls(work, warmups=0, budget_seconds=1).median == 60 and work.calls == 3


def test_work_on_a_gpu_is_waited_for_before_and_after(monkeypatch):
    """The order of events with a GPU, which this machine need not have."""
    events = []
    monkeypatch.setattr("torch.cuda.synchronize", lambda device: events.append("wait"))
    time_call(lambda: events.append("work"), "cuda")
    assert events == ["wait", "work", "wait"]
    time_call(lambda: events.append("work"), "cpu")
    assert events[3:] == ["work"]


def test_a_cpu_has_nothing_to_wait_for():
    assert synchronize("cpu") is None
