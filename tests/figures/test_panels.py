"""Panels and points: one scale for all steps, one marker for each label, hollow where it was recorded."""

from labs_utils.figures.panels import points_figure, timelines_figure
from labs_utils.timeline import Event, Timeline


def step(nbytes):
    events = [Event(0, nbytes, "forward", "mm"), Event(0, -nbytes, "backward", "free")]
    return Timeline(events)


def test_steps_side_by_side_share_one_scale_and_name_their_peaks():
    figure = timelines_figure({"small": step(2**20), "large": step(2**22)}, "Which is larger?")
    small, large = figure.axes
    assert small.get_ylim() == large.get_ylim() and small.get_ylim()[1] > 4
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["small", "large"]
    texts = [text.get_text() for axes in figure.axes for text in axes.texts]
    assert texts == ["forward", "backward", "peak 1.00 MiB", "forward", "backward", "peak 4.00 MiB"]


def legend(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_recorded_points_are_hollow_and_every_point_has_its_own_marker():
    points = {"none": (1.0, 2.0), "full": (0.5, 3.0)}
    for method, hollow in (("recall", True), ("measure", False)):
        figure = points_figure({"": points}, "Worth it?", "GiB", "s", method)
        (axes,) = figure.axes
        assert legend(figure) == list(points)
        assert [line.get_markerfacecolor() == "white" for line in axes.lines] == [hollow] * 2
        assert len({line.get_marker() for line in axes.lines}) == 2


def test_a_label_looks_the_same_in_every_panel_and_where_others_are_missing():
    panels = {"few": {"none": (1, 2), "full": (1, 3)}, "many": {"none": None, "full": (4, 5)}, "most": {"full": (6, 7)}}
    figure = points_figure(panels, "Worth it?", "GiB", "s")
    few, many, most = figure.axes
    assert few.get_xlim() == most.get_xlim() and few.get_ylim() == most.get_ylim()
    assert len({line.get_marker() for line in (few.lines[1], many.lines[0], most.lines[0])}) == 1
    assert legend(figure) == ["none", "full"]
    (alone,) = points_figure({"": panels["many"]}, "Worth it?", "GiB", "s").axes
    assert [line.get_marker() for line in alone.lines] == [few.lines[1].get_marker()]
