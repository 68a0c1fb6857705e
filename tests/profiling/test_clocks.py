"""The clocks of a training step: seconds and peaks by phase, and copies between what is the device's and the host's."""

import time

import pytest
import torch

from labs_utils.profiling.phase_clock import ASIDE, PhaseClock
from labs_utils.profiling.step_clock import StepClock

CPU = torch.device("cpu")


@pytest.fixture
def times(monkeypatch):
    """What `time.perf_counter` says next, in seconds."""
    times = iter(range(100))
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(times)) ** 2)


def test_a_phase_that_comes_again_adds_up_and_what_is_aside_is_left_out(times):
    clock = PhaseClock(CPU)
    for phase in ("forward", "backward", ASIDE, "forward", "optimizer"):
        clock.begin(phase)
    clock.end()
    assert clock.seconds == {"forward": 1 + 7, "backward": 3, "optimizer": 9}
    assert clock.peak_bytes == {}


def test_on_a_gpu_each_phase_has_its_own_peak_and_the_larger_one_if_it_comes_again(monkeypatch):
    peaks, events = iter([30, 50, 20, 40]), []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: events.append("wait"))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: events.append("read") or next(peaks))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: events.append("reset"))
    clock = PhaseClock(torch.device("cuda", 0))
    for phase in ("forward", "backward", "forward", "optimizer"):
        clock.begin(phase)
    clock.end()
    assert clock.peak_bytes == {"forward": 30, "backward": 50, "optimizer": 40}
    assert events == ["wait", "reset"] + 4 * ["wait", "read", "reset"]


def test_only_copies_that_cross_are_counted_in_their_phase():
    on_host, on_device = torch.ones(3), torch.ones(3, dtype=torch.bfloat16)
    clock = StepClock(CPU, [on_host])
    with clock:
        clock.begin("forward")
        on_device.to(torch.float32)
        on_device.copy_(on_device.clone())
        clock.begin("backward")
        on_host.copy_(on_device)
        clock.begin("optimizer")
        on_device.copy_(on_host)
        on_device.copy_(on_host)
    clock.end()
    assert list(clock.phases) == ["forward", "backward", "optimizer"]
    crossed = {
        phase: {way: (of["calls"], of["bytes"]) for way, of in ways.items()} for phase, ways in clock.copies.items()
    }
    assert crossed == {"backward": {"device_to_host": (1, 6)}, "optimizer": {"host_to_device": (2, 12)}}
    assert clock.moved_bytes() == {"device_to_host": 6, "host_to_device": 12}


def test_the_hosts_work_is_timed_while_it_is_watched_and_no_longer(times):
    class Optimizer:
        def step(self):
            return "stepped"

    clock, optimizer = StepClock(CPU), Optimizer()
    with clock.watching(optimizer, "step", "cpu_adam"):
        assert [optimizer.step(), optimizer.step()] == ["stepped"] * 2
    optimizer.step()
    assert clock.split_seconds()["cpu_adam"] == 1 + 5
