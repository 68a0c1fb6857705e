"""The tracker counts every storage once, from its first operator to its last reference."""

import pytest
import torch
from helpers import VARIANT_PARAMETERS, VARIANTS, dry_variant, phase_peaks, small_run, tracked_step

from labs_utils.answers.from_timeline import read_off
from labs_utils.device import CPU
from labs_utils.profiling.tracker import MemoryTracker, host_memory

LOSS_SCALE_BYTES = 64  # fp16's gradient scaler, which a dry run leaves out: some scalars
KIB = 2**10


def live_bytes(tracker):
    return sum(event.change_bytes for event in tracker.timeline.events)


@pytest.mark.parametrize("variant", VARIANT_PARAMETERS)
def test_a_real_step_is_tracked_as_the_dry_run_says(variant):
    run = small_run(**VARIANTS[variant])
    real, dry = read_off(tracked_step(run), run, "measure", CPU), dry_variant(variant)
    scalars_bytes = LOSS_SCALE_BYTES if run.precision == "fp16-mixed" else 0
    assert real.parts == pytest.approx(dry.parts, abs=scalars_bytes)
    assert phase_peaks(real) == pytest.approx(phase_peaks(dry), abs=scalars_bytes)
    assert real.phase == dry.phase
    assert real.provenance.get("host_bytes") == dry.provenance.get("host_bytes")


def test_a_storage_counts_once_whatever_views_there_are():
    with MemoryTracker() as tracker:
        x = torch.ones(KIB)
        views = [x[1:], x.view(32, 32).T, x.detach()]
        assert live_bytes(tracker) == 4 * KIB
        del x
        assert live_bytes(tracker) == 4 * KIB
        del views
        assert live_bytes(tracker) == 0


def test_an_operator_in_place_takes_nothing_and_one_out_of_place_does():
    with MemoryTracker() as tracker:
        x = torch.ones(KIB)
        x.add_(1)
        assert live_bytes(tracker) == 4 * KIB
        y = x + 1
        assert live_bytes(tracker) == 8 * KIB
        assert y.sum().item() == 3 * KIB


def test_what_autograd_saves_stays_until_backward():
    weight = torch.ones(KIB, requires_grad=True)
    with MemoryTracker() as tracker:
        loss = (weight * 2).exp().sum()
        assert live_bytes(tracker) == 4 * KIB + 4  # exp's output, and the loss
        loss.backward()
        assert live_bytes(tracker) == 4 * KIB + 4  # the gradient, and the loss
        assert weight.grad is not None


def test_meta_tensors_and_empty_ones_count_nothing():
    with MemoryTracker() as tracker:
        kept = [torch.ones(KIB, device="meta"), torch.ones(0)]
    assert len(kept) == 2 and not tracker.timeline.events


def test_events_have_the_phase_in_which_they_fell_and_the_operator():
    with MemoryTracker() as tracker:
        tracker.phase("forward")
        x = torch.ones(KIB)
        tracker.phase("backward")
        del x
    assert [(event.phase, event.operator) for event in tracker.timeline.events] == [
        ("forward", "aten.ones.default"),
        ("backward", "free"),
    ]


def test_what_was_there_before_is_counted_when_it_is_watched():
    weight = torch.ones(KIB)
    with MemoryTracker() as tracker:
        tracker.watch("parameters", [weight, weight.view(-1)])
        tracker.phase("forward")
        kept = weight * 2
    peak = tracker.timeline.peak()
    assert kept is not weight and peak.parts["parameters"] == peak.parts["activations"] == 4 * KIB


def test_a_last_dimension_of_the_vocabulary_makes_logits():
    with MemoryTracker(vocab_size=500) as tracker:
        tracker.phase("forward")
        kept = [torch.ones(2, 500), torch.ones(500, 2)]
    parts = tracker.timeline.peak().parts
    assert len(kept) == 2 and parts["logits"] == parts["activations"] == 4000


def test_what_is_made_in_host_memory_is_kept_apart():
    with MemoryTracker() as tracker:
        tracker.phase("forward")
        with host_memory():
            on_host = torch.ones(KIB)
        on_device = on_host + 1
        on_host.add_(1)
        del on_host
    assert on_device.shape == (KIB,) and tracker.timeline.peak().live_bytes == 4 * KIB
    assert tracker.timeline.host_peak_bytes() == 4 * KIB
    assert sum(event.change_bytes for event in tracker.timeline.host_events) == 0


def test_bytes_that_no_tensor_shows_are_held_and_released():
    tracker = MemoryTracker()
    tracker.phase("forward")
    tracker.release(tracker.hold(KIB, "cublas"))
    assert tracker.timeline.peak().parts["workspace"] == KIB and live_bytes(tracker) == 0
