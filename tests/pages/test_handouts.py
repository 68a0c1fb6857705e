"""The handout: one page that needs nothing else, says everything the notebook says, and runs nothing."""

import logging
import re
import subprocess
import sys
from types import SimpleNamespace

import nbformat
import pytest
from html_pages import images, loads_or_runs
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from places import ROOT

from labs_utils.pages.course import title_of
from labs_utils.pages.handouts import write_handouts
from labs_utils.pages.marks import ANSWER, QUESTION
from labs_utils.pages.page import HandoutError, clean_html, to_html

LABS = sorted((ROOT / "notebooks").glob("*.ipynb"))
OTHER = "application/vnd.other+json"
ONE_PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII="


def page_of(*cells, **options) -> str:
    return to_html(new_notebook(cells=list(cells)), "sample", **options)


def text(source: str, **options) -> str:
    return page_of(new_markdown_cell(source), **options)


def shown(mime: str, data: str, **metadata) -> str:
    output = new_output("display_data", {mime: data}, metadata={mime: metadata})
    return page_of(new_code_cell("show()", outputs=[output]))


def printed(*chunks: str, name: str = "stdout") -> str:
    outputs = [new_output("stream", name=name, text=chunk) for chunk in chunks]
    return page_of(new_code_cell("work()", outputs=outputs))


def body(page: str) -> str:
    """What follows the styles."""
    return page.split("<main>", 1)[1]


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """A sample notebook, executed by a real kernel, and the page made from it."""
    folder = tmp_path_factory.mktemp("course")
    notebook = new_notebook(
        cells=[
            new_markdown_cell("# Lab 01: *what* takes memory?\n\n| term | 中文 |\n|---|---|\n| gradient | 梯度 |"),
            new_markdown_cell("## How many bytes?\n\n$2 + 2 + 12 = 16$ bytes, [read more](https://example.com/)."),
            new_code_cell("import os\nfrom tqdm import tqdm\nfor _ in tqdm(range(40), mininterval=0): pass"),
            new_code_cell(f"open('{folder / 'cwd'}', 'w').write(os.getcwd())"),
            new_markdown_cell("## Which part?"),
            new_code_cell(
                "from base64 import b64decode\nfrom IPython.display import Image\n"
                f"Image(b64decode('{ONE_PIXEL}'), alt='Gradients & moments')"
            ),
            new_code_cell("1" + " + 1" * 60),
        ]
    )
    path = folder / "01_sample.ipynb"
    nbformat.write(notebook, path)
    committed = path.read_bytes()
    [page] = write_handouts([folder], folder / "out")
    return SimpleNamespace(folder=folder, path=path, committed=committed, page=page, html=page.read_text("utf-8"))


def test_a_handout_loads_nothing_and_runs_nothing(course):
    assert loads_or_runs(course.html) == []


@pytest.mark.parametrize(
    "markup",
    [
        "<script>x</script>",
        '<link href="a.css">',
        '<img src="http://x/y.png">',
        "<img src=y.png>",
        "<style>@import 'x';</style>",
        "<style>a {background: url(x.woff)}</style>",
        '<p onclick="x()">',
        '<a href="javascript:x()">',
    ],
)
def test_the_search_for_what_loads_or_runs_finds_it(markup):
    assert loads_or_runs('<a href="https://example.com/">x</a><img src="data:image/png;base64,AA">') == []
    assert loads_or_runs(markup) != []


def test_a_notebook_runs_in_its_own_folder_and_is_not_changed(course):
    assert (course.folder / "cwd").read_text() == str(course.folder)
    assert course.path.read_bytes() == course.committed


def test_a_page_is_named_after_its_notebook_and_leaves_only_the_index_beside_it(course):
    assert sorted(path.name for path in course.page.parent.iterdir()) == ["01_sample.html", "index.html"]


def test_the_page_is_titled_by_the_first_heading(course):
    assert "<title>Lab 01: what takes memory?</title>" in course.html
    assert '<html lang="en">' in course.html
    assert title_of(new_notebook(cells=[new_markdown_cell("no heading")])) is None


def test_the_contents_link_to_every_section(course):
    contents = course.html.split('<nav aria-label="Contents"', 1)[1].split("</nav>", 1)[0]
    targets = re.findall(r'<a href="#([^"]+)">', contents)
    assert len(targets) == 2 and all(f'<h2 id="{target}">' in course.html for target in targets)


def test_a_progress_bar_leaves_only_its_last_state(course):
    assert course.html.count("%|") == 1 and "40/40" in course.html


def test_chinese_tables_links_and_figures_survive(course):
    page = body(course.html)
    assert ">梯度</td>" in page and '<a href="https://example.com/">' in page
    [figure] = images(page)
    assert figure["alt"] == "Gradients & moments" and figure["src"].strip() == f"data:image/png;base64,{ONE_PIXEL}"


def test_each_line_of_code_goes_on_below_itself_and_prose_flush():
    page = page_of(new_code_cell('def f(x):\n    """Prose\n\n    <b>"""\n    return x'))
    lines = re.findall(r'<span class="line" style="--indent: (\d+)ch">(.*?)\n</span>', page)
    shown = ["".join(re.split("<[^>]*>", line)) for _, line in lines]
    assert shown == ["def f(x):", '    """Prose', "", '    &lt;b&gt;"""', "    return x"]
    assert [indent for indent, _ in lines] == ["2", "4", "2", "4", "6"]


def test_chinese_terms_stay_whole_and_chinese_sentences_may_break():
    page = text("| t | z |\n|---|---|\n| gradient | 梯度 |\n| a claim | 活化值會隨著序列長度線性增加，不是指數增加。 |")
    assert '<td class="term" lang="zh-Hant">梯度</td>' in page
    assert '<td lang="zh-Hant">活化值' in page and "<td>gradient</td>" in page


def test_formulas_become_mathml_in_text_display_and_outputs():
    inline, display = text(r"cost $\frac{a}{b}$ here"), text("$$\nx^2\n$$")
    environment = text("\\begin{align}\na &= b\n\\end{align}")
    assert "<mfrac>" in inline and "$" not in body(inline)
    assert 'display="block"' in display and "<msup>" in display
    assert "<mtable" in environment and "begin" not in body(environment)
    assert "<msqrt>" in shown("text/latex", r"$\sqrt{x}$") and "<msqrt>" in shown("text/markdown", r"$\sqrt{x}$")


@pytest.mark.parametrize("code", ["`$a$ and $b$`", "`$$x$$`", "```\n$a$ $$b$$\n```", "    $a$", r"it costs \$5 or \$6"])
def test_dollars_in_code_or_escaped_are_not_formulas(code):
    page = body(text(f"Text\n\n{code}\n\nmore"))
    assert "<math" not in page and "$" in page


def test_a_formula_that_cannot_be_set_is_named_in_one_sentence():
    with pytest.raises(HandoutError, match=r"sample: the formula .*left.* can't be set"):
        text(r"$\left( x$")


def test_hints_stay_folded_around_what_they_hide():
    page = text("<details><summary>Hint 1</summary>\n\nThink of **gradients** and $P$.\n\n</details>\n\nafter")
    hint = page.split("<details>", 1)[1].split("</details>", 1)[0]
    assert "<strong>gradients</strong>" in hint and "<math" in hint and "after" not in hint


def test_exercise_cells_are_marked():
    exercise = new_code_cell("def f(): ...", metadata={"labs": {"exercise": "lab01.f"}})
    assert 'class="code exercise"' in page_of(exercise)
    assert 'class="code exercise"' not in page_of(new_code_cell("f()"))


def code_page(*mimes: str, source: str = "work()", **labs) -> str:
    """The body of a page with one code cell, whose outputs are lines of text marked by further MIME types."""
    outputs = [new_output("display_data", {"text/html": f"<p>line {n}</p>", m: {}}) for n, m in enumerate(mimes)]
    return body(page_of(new_code_cell(source, outputs=outputs, metadata={"labs": labs})))


def test_a_question_is_text_without_the_code_that_asks_it():
    page = code_page(QUESTION, QUESTION)
    assert "line 0" in page and "line 1" in page and "highlight" not in page and "<details" not in page
    assert "highlight" in code_page(QUESTION, OTHER)  # the cell does more than to ask


def test_an_answer_stands_behind_a_tap_with_all_that_its_cell_shows():
    page = code_page(OTHER, ANSWER)
    answer = page.split('<details class="answer"><summary>Answer</summary>', 1)[1].split("</details>", 1)[0]
    assert "line 0" in answer and "line 1" in answer and "highlight" not in answer
    assert "<details" not in code_page(OTHER)


@pytest.mark.parametrize(("role", "summary"), [("setup", "Code: set-up"), ("plumbing", "Code: figures and tables")])
def test_code_that_prepares_is_folded_and_what_it_shows_is_not(role, summary):
    page = code_page(OTHER, role=role)
    code, shown = page.split("</details>", 1)
    assert f"<summary>{summary}</summary>" in code and "work" in code and "line 0" in shown


@pytest.mark.parametrize("path", LABS, ids=lambda path: path.stem)
def test_what_is_folded_on_the_page_is_folded_in_jupyterlab(path):
    cells = [cell for cell in nbformat.read(path, 4).cells if cell.metadata.get("labs", {}).get("role") == "plumbing"]
    assert [cell.id for cell in cells if not cell.metadata.get("jupyter", {}).get("source_hidden")] == []


@pytest.mark.parametrize("path", LABS, ids=lambda path: path.stem)
def test_a_cell_that_asks_for_a_guess_does_nothing_else(path):
    """Its code isn't shown on the page."""
    asking = [cell for cell in nbformat.read(path, 4).cells if "predict(" in cell.source and cell.cell_type == "code"]
    assert (
        asking
        and [cell.id for cell in asking if not re.fullmatch(r"((question = |predict\().*\n?)+", cell.source)] == []
    )


@pytest.mark.parametrize(
    "attack",
    [
        "<script>alert(1)</script>",
        "<script>alert(1)",
        "<img src=x onerror=alert(1)>",
        '<a href="javascript:alert(1)">x</a>',
        '<a href="data:text/html,x">x</a>',
        '<iframe src="https://example.com"></iframe>',
        '<p style="background:url(https://example.com/x)">x</p>',
        "<style>@import 'x'</style>",
        "<math><mtext><script>alert(1)</script></mtext></math>",
        '<img src="https://example.com/x.png">',
    ],
)
def test_markup_in_outputs_can_neither_run_nor_load(attack):
    for page in (shown("text/html", f"<b>kept</b>{attack}"), shown("text/markdown", f"**kept**\n\n{attack}")):
        assert "kept" in page and loads_or_runs(page) == []


def test_javascript_outputs_are_left_out():
    assert "alert" not in body(shown("application/javascript", "alert(1)"))


def test_tables_in_outputs_keep_their_structure():
    table = '<table><thead><tr><th scope="col" style="text-align: right">a</th></tr></thead></table>'
    assert clean_html(table).replace(";", "") == table


def test_printed_markup_is_text_and_colours_are_classes():
    page = body(printed("<b>not bold</b> \x1b[31mred\x1b[0m"))
    assert "&lt;b&gt;not bold" in page and '<span class="ansi-red-fg">red</span>' in page and "\x1b" not in page


def test_a_bar_that_erases_itself_leaves_no_empty_box():
    assert '<pre class="output' not in printed("\r 50%|##  |", "\r100%|####|", "\r        \r", name="stderr")


def test_a_figure_without_alt_text_is_warned_of(caplog):
    with caplog.at_level(logging.WARNING):
        shown("image/png", ONE_PIXEL)
    assert "Alternative text is missing on 1 image" in caplog.text


@pytest.mark.parametrize("mime", ["image/png", "image/jpeg", "image/svg+xml"])
def test_every_kind_of_figure_keeps_its_alt_text_and_size(mime):
    [image] = images(shown(mime, "<svg/>" if "svg" in mime else ONE_PIXEL, alt='the "peak"', width=320))
    assert image["src"].startswith(f"data:{mime};base64,")
    assert image["alt"] == 'the "peak"' and image["width"] == "320"


def test_pictures_in_text_are_put_inside(tmp_path):
    (tmp_path / "step.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    assert 'src="data:image/svg+xml;base64,' in text("![A step](step.svg)", folder=tmp_path)
    with pytest.raises(HandoutError, match=r"'gone.png' is not a file in the notebook's folder"):
        text("![A step](gone.png)", folder=tmp_path)


def run_handouts(*arguments) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "labs_utils.cli", "handouts", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def last_line(process: subprocess.CompletedProcess) -> str:
    return process.stderr.strip().splitlines()[-1]


@pytest.mark.slow
def test_a_failing_cell_is_one_sentence_and_leaves_no_page(tmp_path):
    cells = [new_markdown_cell("# T"), new_code_cell("# why\nimport os"), new_code_cell("x = 1\nprint(x)\n1 / 0")]
    nbformat.write(new_notebook(cells=cells), tmp_path / "01_bad.ipynb")
    made = run_handouts(tmp_path, "--out", tmp_path / "out")
    assert made.returncode == 1 and list((tmp_path / "out").iterdir()) == []
    assert last_line(made) == "labs: 01_bad.ipynb, cell 3 ('x = 1'): ZeroDivisionError: division by zero"
    assert "Traceback" not in made.stderr


def test_a_dying_kernel_is_one_sentence(tmp_path):
    nbformat.write(new_notebook(cells=[new_code_cell("import os; os._exit(1)")]), tmp_path / "01_dead.ipynb")
    with pytest.raises(HandoutError, match="01_dead.ipynb, cell 1 .* its Python process died"):
        write_handouts([tmp_path], tmp_path / "out")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [("not json", "01_x.ipynb is not a notebook"), ("{}", "01_x.ipynb is not a notebook"), (None, "no notebook in")],
)
def test_what_is_not_a_notebook_is_one_sentence(tmp_path, content, sentence):
    if content is not None:
        (tmp_path / "01_x.ipynb").write_text(content)
    with pytest.raises(HandoutError, match=sentence):
        write_handouts([tmp_path], tmp_path / "out")


def test_a_missing_notebook_is_one_sentence(tmp_path):
    with pytest.raises(HandoutError, match="02_gone.ipynb is not there"):
        write_handouts([tmp_path / "02_gone.ipynb"], tmp_path / "out")


@pytest.mark.parametrize("path", LABS, ids=lambda path: path.stem)
def test_labs_draw_with_the_courses_own_functions_which_describe_each_figure(path):
    code = [cell.source for cell in nbformat.read(path, 4).cells if cell.cell_type == "code"]
    assert [source for source in code if re.search(r"matplotlib|pyplot|\bImage\(|%matplotlib", source)] == []


@pytest.mark.slow
@pytest.mark.parametrize("path", LABS[1:2], ids=lambda path: path.stem)
def test_a_lab_makes_a_handout_that_stands_alone_and_describes_its_figures(path, tmp_path):
    """One that draws all kinds of figures; nbmake runs the cells of all."""
    [page] = write_handouts([path], tmp_path)
    html = page.read_text("utf-8")
    assert loads_or_runs(html) == []
    assert [image["src"][:40] for image in images(html) if image["alt"].startswith("No description")] == []
