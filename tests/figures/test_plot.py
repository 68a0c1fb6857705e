"""Figures and tables: what is drawn adds up to the answer, and nothing recorded looks as if it were measured here."""

import re
from itertools import combinations

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from labs_utils import estimate
from labs_utils.answer import PARTS, PHASES, Answer
from labs_utils.answers.estimate import estimate_timeline
from labs_utils.device import H200
from labs_utils.figures import plot, step_area
from labs_utils.figures.plot import Curve, compare, curves_figure, parts_figure, plot_parts, plot_timeline
from labs_utils.figures.style import LOOKS, THING_LOOKS, curve_style, part_style
from labs_utils.figures.tables import show_table
from labs_utils.run import LLAMA_8B, TINY, Run
from labs_utils.units import worded_bytes

GIB = 2**30
RUN = Run(model=LLAMA_8B, seq_len=8192)
# Red-green blindness as a matrix on linear RGB: Machado, Oliveira and Fernandes (2009), table 1, severity 1.
DEUTERANOPIA = np.array([[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]])
PROTANOPIA = np.array([[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]])


@pytest.fixture(scope="module")
def answer():
    return estimate(RUN, H200)


@pytest.fixture(scope="module")
def timeline():
    return estimate_timeline(RUN, H200)


@pytest.fixture
def alt(monkeypatch):
    """The alt texts of the figures shown."""
    texts = []
    monkeypatch.setattr(plot, "show", lambda figure, alt: texts.append(alt))
    return texts


def recorded(answer, **changes):
    return answer.model_copy(update={"method": "recall", **changes})


def bars(figure):
    return figure.axes[0].patches


def texts(figure):
    return [text.get_text() for text in figure.axes[0].texts]


def test_the_pieces_of_a_bar_add_up_to_the_peak(answer):
    figure = parts_figure(["estimated"], [answer], "How much?")
    assert sum(bar.get_height() for bar in bars(figure)) * GIB == pytest.approx(answer.peak_bytes)
    assert texts(figure) == [f"{answer.peak_bytes / GIB:.1f}"]


def test_a_figure_asks_its_question_and_names_its_units(answer):
    axes = parts_figure(["1k"], [answer], "How much?", "tokens").axes[0]
    assert axes.get_title(loc="left") == "How much?"
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("tokens", "memory (GiB)")


def test_few_bytes_are_drawn_in_mebibytes():
    axes = parts_figure(["tiny"], [{"parameters": 3 * 2**20}], "How much?").axes[0]
    assert axes.get_ylabel() == "memory (MiB)" and bars(axes.figure)[0].get_height() == 3


def test_recorded_bars_are_hollow_and_dashed_and_all_others_are_filled(answer):
    labels = ["estimated", "recorded"]
    drawn = bars(parts_figure(labels, [answer, recorded(answer)], "How much?"))
    looks = {(round(bar.get_x()), bar.get_linestyle(), bar.get_facecolor()[:3] == (1, 1, 1)) for bar in drawn}
    assert {look[1:] for look in looks if look[0] == 0} == {("-", False)}
    assert {look[1:] for look in looks if look[0] == 1} == {("--", True)}


@pytest.mark.parametrize("method", ["estimate", "dry_run", "measure"])
def test_no_live_style_can_be_taken_for_a_recorded_one(method):
    assert all(part_style(part, method) != part_style(part, "recall") for part in LOOKS)
    assert curve_style(0, method) != curve_style(0, "recall")


def test_estimates_and_dry_runs_are_told_apart():
    methods = ("estimate", "dry_run", "measure")
    assert len({str(curve_style(0, method)) for method in methods}) == 3
    assert all(part_style(part, "dry_run") != part_style(part, "estimate") for part in LOOKS)


def test_what_is_not_a_part_has_no_parts_colour():
    colours = [colour for colour, _ in THING_LOOKS]
    assert len(set(colours)) == len(colours) and not set(colours) & {colour for colour, _ in LOOKS.values()}


def test_a_recorded_curve_is_hollow_and_dashed_and_says_so():
    curves = [Curve("SDPA", {1: 1.0, 2: 2.0}), Curve("eager", {1: 1.0, 2: 4.0}, "recall")]
    live, old = curves_figure(curves, "How fast?", "tokens", "GiB").axes[0].lines
    assert (live.get_linestyle(), old.get_linestyle(), old.get_markerfacecolor()) == ("-", "--", "white")
    assert (live.get_label(), old.get_label()) == ("SDPA (measured)", "eager (recorded)")


def test_a_limit_is_a_dotted_line_without_points():
    curves = [Curve("limit", {1: 2.0, 2: 2.0}, ""), Curve("formula", {1: 1.0, 2: 2.0}, "")]
    limit, formula = curves_figure(curves, "How fast?", "tokens", "GiB").axes[0].lines
    assert (limit.get_linestyle(), limit.get_marker()) == (":", "None") and formula.get_marker() != "None"


def test_curves_of_one_label_have_one_colour():
    curves = [Curve(label, {1: 1.0}, method) for label in "ab" for method in ("estimate", "recall")]
    colours = [line.get_color() for line in curves_figure(curves, "How large?", "GPUs", "GiB").axes[0].lines]
    assert colours[0] == colours[1] != colours[2] == colours[3]


def test_every_part_has_a_colour_and_a_hatch_of_its_own():
    assert set(PARTS) < set(LOOKS)
    assert len({hatch for _, hatch in LOOKS.values()}) == len({colour for colour, _ in LOOKS.values()}) == len(LOOKS)


@pytest.mark.parametrize("seen", [np.eye(3), DEUTERANOPIA, PROTANOPIA], ids=["all", "deuteranopia", "protanopia"])
def test_colours_stay_apart_for_colour_blind_readers(seen):
    """Their least distance in linear RGB, where black and white are 1.7 apart, is that of two neighbouring greys."""
    colours = {part: seen @ (np.array(to_rgb(LOOKS[part][0])) ** 2.2) for part in PARTS}
    distances = {pair: np.linalg.norm(colours[pair[0]] - colours[pair[1]]) for pair in combinations(PARTS, 2)}
    assert min(distances.values()) > 0.1, min(distances, key=distances.get)


def test_an_answer_that_does_not_know_its_parts_is_one_plain_bar(answer):
    measured = answer.model_copy(update={"method": "measure", "parts": None})
    (bar,) = bars(parts_figure(["measured"], [measured], "How much?"))
    assert bar.get_height() * GIB == pytest.approx(answer.peak_bytes)


def test_what_does_not_fit_or_is_not_supported_is_named_and_breaks_nothing(answer, alt, capsys):
    unsupported = Answer.unsupported(RUN, "dry_run", "H200", "no such kernel")
    full = answer.model_copy(update={"outcome": "out of memory"})
    failed = full.model_copy(update={"method": "measure", "peak_bytes": None, "parts": None})
    figure = parts_figure(["a", "b", "c"], [unsupported, full, failed], "How much?")
    assert [text.split("\n")[-1] for text in texts(figure)] == ["unsupported", "memory", "memory"]
    compare(unsupported, full, failed)
    assert "unsupported: no such kernel" in capsys.readouterr().out
    assert "no bytes known" in alt[0]


def test_nothing_but_failures_can_be_compared(alt, capsys):
    compare(Answer.unsupported(RUN, "dry_run", None, "no such kernel"))
    assert "dry run  any  unsupported: no such kernel" in capsys.readouterr().out


def test_comparing_names_what_sets_the_runs_apart_and_nothing_else(answer, alt, capsys):
    other = estimate(RUN.replace(model=TINY, seq_len=128), H200)
    compare(answer, other)
    table = capsys.readouterr().out
    assert "8.03B parameters, seq_len 8192" in table and "seq_len 128  estimated  H200" in table
    assert "micro_batch" not in table
    compare(answer, recorded(answer))
    assert capsys.readouterr().out.splitlines()[0] == "method  device  outcome  peak  phase"
    assert "recorded on H200: 106.0 GiB (parameters 15.0 GiB" in alt[1]


def test_the_alt_text_says_what_the_bars_show(answer, alt):
    plot_parts({"8k": answer, "nothing": {}}, "How much?", device=H200)
    assert alt[0].startswith("How much? Bar chart. 8k: 106.0 GiB (parameters 15.0 GiB, optimizer states 29.9 GiB")
    assert alt[0].endswith("nothing: no bytes known.")


def test_the_memory_of_the_device_is_a_line(answer):
    (line,) = parts_figure(["8k"], [answer], "How much?", device=H200).axes[0].lines
    assert line.get_ydata()[0] * GIB == H200.memory_bytes and "H200" in line.get_label()


@pytest.mark.parametrize("most", [1, 7, 120])
def test_thinning_keeps_the_peak_and_every_bin_of_the_step(timeline, most):
    moments = list(timeline.moments())
    kept = step_area.thinned(moments, most)
    assert len(kept) <= most < len(moments)
    assert max(moment.live_bytes for _, moment in kept) == timeline.peak().live_bytes
    starts = [start for start, _ in kept] + [len(moments)]
    assert all(moment in moments[starts[i] : starts[i + 1]] for i, (_, moment) in enumerate(kept))


def test_a_short_timeline_is_not_thinned(timeline):
    moments = list(timeline.moments())[:5]
    assert step_area.thinned(moments, 5) == list(enumerate(moments))


def test_the_areas_of_a_timeline_reach_the_peak_and_no_higher(timeline):
    figure = plot.timeline_figure(timeline, "When?")
    tops = [path.vertices[:, 1].max() for area in figure.axes[0].collections for path in area.get_paths()]
    assert max(tops) * GIB == pytest.approx(timeline.peak().live_bytes)
    assert texts(figure) == [*PHASES, f"peak {worded_bytes(timeline.peak().live_bytes)}"]


def test_a_timeline_shows_the_phases_it_is_asked_for(timeline, alt):
    assert texts(plot.timeline_figure(timeline, "When?", ("optimizer",)))[0] == "optimizer"
    plot_timeline(timeline, "When?")
    assert "the peak is in backward: 106.0 GiB (parameters 15.0 GiB" in alt[0]


def test_long_and_short_sequences_have_their_own_ticks():
    axes = curves_figure([Curve("a", {512: 1.0, 4096: 8.0}, "")], "How fast?", "tokens", "GiB", log=True).axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["512", "4k"]
    assert (axes.get_xscale(), axes.get_yscale(), axes.lines[0].get_label()) == ("log", "log", "a")


@pytest.mark.parametrize(
    "nbytes, words",
    [(0, "0 bytes"), (1023, "1023 bytes"), (2**10, "1.00 KiB"), (20 * 2**20, "20.0 MiB"), (1200 * GIB, "1,200.0 GiB")],
)
def test_bytes_are_worded_in_the_unit_that_fits(nbytes, words):
    assert worded_bytes(nbytes) == words


def test_a_table_in_a_notebook_is_escaped_and_aligns_numbers(monkeypatch):
    shown = []
    monkeypatch.setattr("labs_utils.figures.tables.in_notebook", lambda: True)
    monkeypatch.setattr("IPython.display.display", lambda data, raw: shown.append(data["text/html"]))
    show_table(("what", "bytes"), [("<b>", 1234567), ("share", 0.123456)])
    assert "&lt;b&gt;" in shown[0] and "<b>" not in shown[0]
    assert re.findall(r'<td style="text-align: (\w+)">([^<]*)', shown[0]) == [
        ("left", "&lt;b&gt;"), ("right", "1,234,567"), ("left", "share"), ("right", "0.1235"),
    ]  # fmt: skip
