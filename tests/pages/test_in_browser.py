"""A page on a phone: what headless Chromium finds at a width of 390 px."""

import json
import re
import shutil
import subprocess
from html import unescape
from types import SimpleNamespace

import pytest
from html_pages import loads_or_runs
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from places import TESTS

from labs_utils.pages.course import Link
from labs_utils.pages.marks import ANSWER, QUESTION
from labs_utils.pages.page import to_html

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(not CHROMIUM, reason="no Chromium here; on Debian: apt install chromium")
OPTIONS = "--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --hide-scrollbars --virtual-time-budget=5000"
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII="
SVG = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 800 200"><text y="20">a ring of ranks</text></svg>'
TEXT = r"""# Lab 01: a_title_with_a_name_that_is_longer_than_a_phone_is_wide

| | |
|---|---|
| You will be able to | say what `torch.utils.checkpoint.create_selective_checkpoint_contexts` keeps |

| term | 中文 | in a few words |
|---|---|---|
| activation checkpointing | 活化檢查點 | keep less, and compute again |
| FLOP/s | 每秒浮點運算次數 | additions and multiplications of numbers in a second |

- Inline: $16 P + 34 L b s h + 5 L b a s^2 + 2 V h + 4 b s V = 16 P + L b s h (34 + 5 a s / h) + 2 V h + 4 b s V$

$$M_\mathrm{peak} = 16 P + 34 L b s h + 5 L b a s^2 + 2 V h + 4 b s V = 16 P + L b s h \left(34 + \frac{5a}{h}\right)$$

<details><summary>“A card?”</summary>

Source: <https://github.com/an-owner/a-repository/issues/123456789?a=long&query=that-goes-on-and-on-and-on>

</details>
"""
CODE = "def f(x):\n    if x:\n        return [name for name in LONG_NAMES_OF_ALL_RUNS if name.startswith('checkpoint')]"


def table(columns):
    row = "".join(f"<td>{n},000,000 bytes</td>" for n in range(columns))
    head = "".join(f"<th>quantity {n}</th>" for n in range(columns))
    return f"<table><thead><tr>{head}</tr></thead><tbody><tr>{row}</tr></tbody></table>"


def shown(source, *outputs, role=None):
    """A code cell with outputs, each given as data and metadata."""
    made = [new_output("display_data", data, metadata=metadata) for data, metadata in outputs]
    return new_code_cell(source, outputs=made, metadata={"labs": {"role": role}} if role else {})


def sample():
    """A small page with one of each thing that a lab shows."""
    printed = new_output("stream", text="a line that was printed is longer than the page, too " * 3 + "x" * 99)
    cells = [
        new_markdown_cell(TEXT),
        shown("import sys  # " + "long " * 30, role="setup"),
        shown("predict()", ({"text/html": "<p>How much?</p>", QUESTION: {}}, {})),
        new_code_cell(CODE, outputs=[printed], metadata={"labs": {"exercise": "lab01.f"}}),
        shown("plot()", ({"image/png": PNG}, {"image/png": {"alt": "A figure", "width": 900}})),
        shown("draw()", ({"image/svg+xml": SVG}, {"image/svg+xml": {"alt": "A diagram"}})),
        shown("reveal()", ({"text/html": table(9)}, {}), ({"text/html": "<p>3 GiB</p>", ANSWER: {}}, {})),
    ]
    places = ("prev", "index", "next")
    links = [Link(place, "x.html", "Lab 00", "Lab 00: a title") for place in places]
    return to_html(new_notebook(cells=cells), "sample", links=links)


def found_in(page, folder, *options):
    """What probe.html finds in a page."""
    probe = folder / "probe.html"
    code = (TESTS / "pages/probe.html").read_text("utf-8")
    probe.write_text(code.replace("PAGE", json.dumps(page).replace("<", "\\u003c"), 1), "utf-8")
    command = [
        CHROMIUM,
        *OPTIONS.split(),
        *options,
        f"--user-data-dir={folder / 'profile'}",
        "--dump-dom",
        probe.as_uri(),
    ]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    return SimpleNamespace(**json.loads(unescape(re.search(r'<pre id="found">(.*?)</pre>', dom)[1])))


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return found_in(sample(), tmp_path_factory.mktemp("browser"))


def test_the_page_does_not_scroll_sideways(found):
    assert (found.page_width, found.too_wide) == (390, [])


def test_only_wide_tables_and_formulas_scroll_each_in_its_own_box(found):
    assert set(found.scrolling) == {"table", "span.formula", "span.long-formula"}


def test_the_first_column_stays_when_a_table_scrolls(found):
    assert found.keys_stay and all(found.keys_stay)


def test_chinese_terms_are_not_broken(found):
    assert found.lines_of_terms and set(found.lines_of_terms) == {1}


def test_every_picture_is_there_and_has_its_alt_text(found):
    assert found.pictures == [["A figure", True], ["A diagram", True]]


def test_the_page_asks_the_network_for_nothing():
    assert loads_or_runs(sample()) == []


def test_a_figure_is_dark_in_dark_mode_and_a_diagram_sees_to_that_itself(found, tmp_path):
    dark = found_in(sample(), tmp_path, "--blink-settings=preferredColorScheme=0")
    assert (found.darkened, dark.darkened) == ([False, False], [True, False])


def test_the_probe_finds_what_is_wrong(tmp_path):
    wide, scrolling = '<p style="width: 600px">wide', f'<div style="overflow-x: auto">{table(9)}</div>'
    term = '<b class="term" style="display: block; width: 2em">每秒浮點運算次數</b>'
    found = found_in(f'<!DOCTYPE html><body>{wide}{scrolling}{term}<img src="x.png">', tmp_path)
    assert found.page_width > 390 and "p" in found.too_wide and found.scrolling == ["div"]
    assert found.lines_of_terms > [1] and found.pictures == [["", False]]
