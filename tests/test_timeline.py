"""Reading a timeline: the peak, its phase and parts, and the same in the GPU allocator's blocks."""

import pytest

from labs_utils.timeline import Event, Timeline

MIB = 2**20
# Weights stay; a forward keeps 30 bytes; the backward makes 60 for a moment; the optimizer ends as high as it.
EVENTS = [
    Event(0, 100, "before", "parameter"),
    Event(1, 30, "forward", "mm"),
    Event(2, 60, "backward", "mm"),
    Event(1, -30, "backward", "free"),
    Event(3, 30, "optimizer", "sqrt"),
    Event(3, -30, "optimizer", "free"),
    Event(4, 500, "after", "mm"),
]
TIMELINE = Timeline(EVENTS, {0: "parameters", 2: "gradients", 4: "logits"})


def test_the_peak_is_the_first_moment_with_the_most_bytes_in_the_step():
    peak = TIMELINE.peak()
    assert (peak.live_bytes, peak.event) == (190, EVENTS[2])


def test_a_peak_says_what_it_is_made_of():
    made_of = {part: size for part, size in TIMELINE.peak().parts.items() if size}
    assert made_of == {"parameters": 100, "activations": 30, "gradients": 60}


@pytest.mark.parametrize("phase, peak_bytes", [("forward", 130), ("backward", 190), ("optimizer", 190)])
def test_each_phase_has_its_own_peak(phase, peak_bytes):
    assert TIMELINE.peak(phase).live_bytes == peak_bytes


def test_a_phase_begins_with_what_is_live_already():
    assert [moment.live_bytes for moment in TIMELINE.moments(("optimizer",))] == [160, 190, 160]


def test_parts_sum_to_the_live_bytes_at_every_moment():
    moments = list(TIMELINE.moments())
    assert len(moments) == 6
    assert all(sum(moment.parts.values()) == moment.live_bytes for moment in moments)


def test_a_phase_in_which_nothing_happened_has_no_peak():
    with pytest.raises(ValueError, match="nothing was recorded in phase recall"):
        TIMELINE.peak("recall")


def test_blocks_are_rounded_up_and_segments_are_reserved():
    blocks, reserved_bytes = TIMELINE.in_blocks()
    assert [event.change_bytes for event in blocks.events] == [512, 512, 512, -512, 512, -512, 512]
    assert reserved_bytes == 2 * MIB
    assert blocks.peak().parts["gradients"] == 512


def test_a_freed_block_is_given_out_again_instead_of_new_memory():
    sizes = [12 * MIB, -12 * MIB, 12 * MIB]
    events = [Event(index // 2, size, "forward", "mm") for index, size in enumerate(sizes)]
    assert Timeline(events).in_blocks()[1] == 12 * MIB
