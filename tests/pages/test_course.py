"""The pages as a course: links from lab to lab, an index, and staff pages that nobody takes for a student's."""

import shutil

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from places import TOY

from labs_utils.pages.course import index_of, links, page_name
from labs_utils.pages.handouts import write_handouts
from labs_utils.pages.page import HandoutError, to_html

CARD = "# Lab 01: Memory\n\n**What fills a *GPU*?**\n\n| | |\n|---|---|\n| Time | two hours |"
EXERCISE = new_code_cell("def f(): ...", metadata={"labs": {"exercise": "lab01.f"}})


def lab(*cells):
    return new_notebook(cells=[new_markdown_cell(CARD), *cells])


def write(folder, name, *cells):
    folder.mkdir(exist_ok=True)
    nbformat.write(lab(*cells), folder / name)
    return folder / name


def places(path, titles, **options):
    return [(link.place, link.page, link.text) for link in links(path, titles, **options)]


def test_a_page_leads_to_the_lab_before_the_index_and_the_lab_after(tmp_path):
    titles = {tmp_path / f"{n:02}_x.ipynb": f"Lab {n:02}: About" for n in range(3)}
    first, middle, last = titles
    before, index, after = (
        ("prev", "00_x.html", "Lab 00"),
        ("index", "index.html", "All labs"),
        ("next", "02_x.html", "Lab 02"),
    )
    assert places(middle, titles) == [before, index, after]
    assert [place for place, *_ in places(first, titles)] == ["index", "next"]
    assert [place for place, *_ in places(last, titles)] == ["prev", "index"]


def test_links_stand_at_the_top_and_at_the_end_of_a_page(tmp_path):
    page = to_html(lab(), "01_x", links=links(tmp_path, {tmp_path: "Lab 01"}))
    assert page.count('<a class="index" href="index.html" title="All labs">All labs</a>') == 2
    assert "<nav" not in to_html(lab(), "01_x")


@pytest.mark.parametrize(("staff", "page"), [(False, "04_zero.html#s"), (True, "04_zero.staff.html#s")])
def test_a_link_to_a_notebook_leads_to_its_page(staff, page):
    cell = new_markdown_cell("[Lab 04](04_zero.ipynb#s), [file](https://example.com/x.ipynb)")
    html = to_html(new_notebook(cells=[cell]), "x", staff=staff)
    assert f'href="{page}"' in html and 'href="https://example.com/x.ipynb"' in html


def test_the_index_gives_each_labs_question_and_time():
    html = to_html(index_of([("01_x.html", lab())]), "All labs")
    assert '<a href="01_x.html">Lab 01: Memory</a>' in html
    assert "What fills a <em>GPU</em>?" in html and "Time: two hours." in html


def test_the_index_lists_the_pages_that_are_there_in_order(tmp_path):
    for name in ("02_b.ipynb", "01_a.ipynb", "03_c.ipynb"):
        write(tmp_path, name)
    write_handouts([tmp_path / "02_b.ipynb", tmp_path / "01_a.ipynb"], tmp_path)
    html = (tmp_path / "index.html").read_text("utf-8")
    assert 0 < html.index("01_a.html") < html.index("02_b.html") and "03_c" not in html


def test_a_staff_page_says_so_and_has_a_name_of_its_own(tmp_path):
    path = write(tmp_path / "notebooks", "01_a.ipynb")
    [student], [staff] = (write_handouts([path], tmp_path, staff) for staff in (False, True))
    assert (student.name, staff.name) == (page_name("01_a"), "01_a.staff.html") and student != staff
    assert "Staff version" in staff.read_text("utf-8") and "(staff version)</title>" in staff.read_text("utf-8")
    assert "taff version" not in student.read_text("utf-8")
    assert 'href="01_a.staff.html"' in (tmp_path / "index.staff.html").read_text("utf-8")
    assert "staff" not in (tmp_path / "index.html").read_text("utf-8").split("<main>")[1]


def test_a_staff_page_without_a_solution_is_refused_in_one_sentence(tmp_path):
    path = write(tmp_path / "notebooks", "01_a.ipynb", EXERCISE)
    with pytest.raises(HandoutError, match=r"01_a.ipynb: a staff page needs .*lab01.py, with a solution of lab01.f$"):
        write_handouts([path], tmp_path, staff=True)


@pytest.mark.slow
def test_on_a_staff_page_every_exercise_has_passed(tmp_path):
    shutil.copytree(TOY, tmp_path / "tests" / "toy")
    [page] = write_handouts([tmp_path / "tests/toy/notebooks"], tmp_path, staff=True)
    html = page.read_text("utf-8")
    assert html.count(": passed. All 4 cases are right.") == html.count('class="code exercise"') > 0
