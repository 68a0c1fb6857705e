"""The pattern of the labs that have it: a core path of two hours, with everything else under "Going deeper"."""

import re

import pytest
from test_labs import notebook_cells

from labs_utils.exercises.contract import exercises_of

LABS = ("01", "04")
MOST_WORDS, WORDS_PER_MINUTE, MOST_MINUTES, MOST_CARDS = 2500, 150, 120, 8
WORD = re.compile(r"\S*\w\S*")
HEADING = re.compile(r"^### Exercise: `(\w+)` \((\d+) points, (\d+) minutes, (\w+)\)$", re.MULTILINE)


def core(lab):
    """The cells before "Going deeper", by name."""
    cells = notebook_cells(lab)
    assert "deeper" in cells
    return {name: cells[name] for name in list(cells)[: list(cells).index("deeper")]}


def words(cell):
    """The words that a student reads in a cell: text without its markup, and what an exercise asks for."""
    if cell.cell_type == "markdown":
        text = re.sub(r"\]\([^)]*\)|</?\w+>", " ", cell.source)
        return len(WORD.findall(re.sub(r"[|#*`–-]+", " ", text)))
    if "exercise" in cell.metadata.get("labs", {}):
        return len(WORD.findall(re.search(r'"""(.*?)"""', cell.source, re.DOTALL)[1]))
    return 0


def core_words(lab):
    return sum(words(cell) for name, cell in core(lab).items() if name != "terms")


@pytest.mark.parametrize("lab", LABS)
def test_the_core_path_is_short(lab):
    assert core_words(lab) <= MOST_WORDS


@pytest.mark.parametrize("lab", LABS)
def test_a_lab_takes_two_hours(lab):
    exercises = sum(exercise.minutes for exercise in exercises_of(f"lab{lab}"))
    assert core_words(lab) / WORDS_PER_MINUTE + exercises <= MOST_MINUTES


@pytest.mark.parametrize("lab", LABS)
def test_the_core_path_has_few_cards(lab):
    cards = [name for name, cell in core(lab).items() if "<details>" in cell.source]
    assert 0 < len(cards) <= MOST_CARDS


@pytest.mark.parametrize("lab", LABS)
def test_every_exercise_is_on_the_core_path_and_announced_as_it_is(lab):
    text = "\n\n".join(cell.source for cell in core(lab).values() if cell.cell_type == "markdown")
    announced = [
        (f"lab{lab}.{name}", float(points), int(minutes), how) for name, points, minutes, how in HEADING.findall(text)
    ]
    own = [(each.id, float(each.points), each.minutes, each.difficulty) for each in exercises_of(f"lab{lab}")]
    assert sorted(announced) == sorted(own)


@pytest.mark.parametrize("lab", LABS)
def test_the_core_path_ends_with_what_the_lecture_said(lab):
    assert f'lecture_said("{lab}")' in list(core(lab).values())[-1].source
