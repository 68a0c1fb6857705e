"""Diagrams: each says in words what it shows, uses the colours of the parts, and can be read in the dark."""

import re
from xml.etree import ElementTree

import pytest

from labs_utils.figures.diagrams import FOLDER, alt, diagram, svg
from labs_utils.figures.style import LOOKS

NAMES = [path.stem for path in sorted(FOLDER.glob("*.svg"))]


@pytest.mark.parametrize("name", NAMES)
def test_a_diagram_asks_its_question_and_is_described(name):
    words = alt(svg(name))
    assert re.match(r"(Who|What|How)\b.*?\? [A-Z]", words) and len(words.split()) > 20


@pytest.mark.parametrize("name", NAMES)
def test_a_diagram_has_a_dark_style_and_loads_nothing(name):
    drawing = svg(name)
    ElementTree.fromstring(drawing)
    assert "prefers-color-scheme: dark" in drawing
    assert re.findall(r"https?://\S+", drawing.replace('xmlns="http://www.w3.org/2000/svg"', "")) == []


@pytest.mark.parametrize("name", NAMES)
def test_a_part_has_the_colour_that_it_has_in_figures(name):
    style = svg(name).partition("@media")[0]
    parts = {"parameters": "parameters", "gradients": "gradients", "states": "optimizer_states"}
    drawn = dict(re.findall(r"\.(\w+) { fill: (#\w+) }", style))
    assert {part: drawn[part] for part in parts} == {part: LOOKS[look][0] for part, look in parts.items()}


def test_an_unknown_diagram_is_a_sentence_with_the_known_names():
    with pytest.raises(ValueError, match="'zero' is not a diagram; known: layer, ring, step, zero-stages"):
        diagram("zero")


def test_outside_a_notebook_a_diagram_is_its_words(capsys):
    diagram("step")
    assert capsys.readouterr().out.startswith("What is in memory when")
