"""An executed notebook as one self-contained HTML page: no script, nothing from elsewhere, formulas as MathML."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

import bleach
from bleach.css_sanitizer import ALLOWED_CSS_PROPERTIES, CSSSanitizer
from jinja2 import pass_context
from latex2mathml.converter import convert as mathml
from nbconvert import HTMLExporter
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath, MathBlockParser
from nbformat import NotebookNode

from labs_utils.pages.course import Link, page_name, title_of
from labs_utils.pages.marks import ANSWER, QUESTION

SHOWN_FORMATS = ("text/html", "text/markdown", "text/latex", "image/svg+xml", "image/png", "image/jpeg", "text/plain")
KEPT_TAGS = frozenset(
    "a abbr b blockquote br caption code col colgroup dd del details div dl dt em figcaption figure h1 h2 h3 h4 h5 h6 "
    "hr i img input kbd li mark ol p pre s small span strong sub summary sup table tbody td tfoot th thead tr u ul var "
    "math semantics mi mn mo ms mtext mspace mrow mfrac msqrt mroot mstyle merror mpadded mphantom menclose msub msup "
    "msubsup munder mover munderover mmultiscripts mtable mtr mtd".split()
)
KEPT_ATTRIBUTES = frozenset(
    "align alt checked class colspan disabled height href id lang open rowspan scope src start style title type width "
    "xmlns display mathvariant stretchy fence separator form lspace rspace linethickness columnalign rowspacing "
    "columnspacing columnlines rowlines accent accentunder movablelimits minsize maxsize symmetric notation depth "
    "displaystyle scriptlevel mathcolor mathbackground mathsize".split()
)
KEPT_STYLES = ALLOWED_CSS_PROPERTIES | {"border", "border-left", "border-radius", "margin", "padding", "max-width"}
TABLE_CELL = re.compile(r"<(t[dh])\b([^>]*)>(.*?)(?=</\1>)", re.DOTALL)
CHINESE = re.compile("[\u3000-\u303f\u3400-\u9fff\uff00-\uffef]")
LONGEST_TERM, LONGEST_FORMULA = 12, 24  # in letters: what a phone shows on one line


class HandoutError(RuntimeError):
    """A handout that can't be made: one sentence naming the notebook, the cell and what went wrong."""


def to_html(
    notebook: NotebookNode, name: str, folder: Path = Path(), links: Sequence[Link] = (), staff: bool = False
) -> str:
    """One HTML page of an executed notebook, with styles, figures and mathematics inside and no script.

    `name` is the title of a notebook without a heading; pictures that the text shows are looked for in `folder`;
    `links` lead to other pages of the course. A staff page says that it is one.

    Raises:
        HandoutError: one sentence, when a formula can't be set or a picture isn't there.
    """
    metadata = {"name": title_of(notebook) or name, "path": str(folder)}
    resources = {"metadata": metadata, "headings": [], "links": links, "staff": staff}
    try:
        return HandoutExporter().from_notebook_node(notebook, resources=resources)[0]
    except HandoutError as error:
        raise HandoutError(f"{name}: {error}") from None


class HandoutExporter(HTMLExporter):
    """nbconvert's HTML with the course's template, MathML for mathematics, and only harmless markup kept."""

    def __init__(self, **options):
        here = Path(__file__).parent
        super().__init__(extra_template_basedirs=[str(here)], template_name="template", **options)

    @property
    def default_config(self):
        config = super().default_config
        config.NbConvertBase.display_data_priority = list(SHOWN_FORMATS)
        return config

    def default_filters(self):
        """nbconvert's filters, with the course's own in place of `clean_html` (`markdown2html` is overridden)."""
        yield from super().default_filters()
        yield from {"clean_html": clean_html, "lines": lines, "asks": asks, "answers": answers}.items()

    @pass_context
    def markdown2html(self, context, source: str) -> str:
        """HTML of Markdown; headings are noted in `resources.headings` for the table of contents."""
        resources = context["resources"]
        renderer = _Renderer(
            resources["headings"],
            resources["staff"],
            escape=False,
            embed_images=True,
            path=resources["metadata"]["path"],
            attachments=context["cell"].get("attachments", {}),
        )
        return clean_html(MarkdownWithMath(renderer, block=_BlockParser()).render(source))


class _BlockParser(MathBlockParser):
    """Display formulas start a line; nbconvert's own parser finds them inside code spans too."""

    SPECIFICATION = {
        **MathBlockParser.SPECIFICATION,
        "multiline_math": rf"^ {{0,3}}(?:{MathBlockParser.MULTILINE_MATH})",
    }


class _Renderer(IPythonRenderer):
    """Markdown to HTML with formulas as MathML, and headings numbered for links."""

    def __init__(self, headings: list[dict], staff: bool, **options):
        super().__init__(**options)
        self.headings = headings
        self.staff = staff

    def heading(self, text: str, level: int, **_) -> str:
        self.headings.append({"id": f"section-{len(self.headings) + 1}", "level": level, "html": text})
        return f'<h{level} id="{self.headings[-1]["id"]}">{text}</h{level}>\n'

    def block_html(self, html: str) -> str:
        return html  # nbconvert looks for pictures here, and closes tags such as <details> too early

    inline_html = block_html

    def link(self, text: str, url: str, title: str | None = None) -> str:
        """A link to another notebook leads to its page."""
        address = urlsplit(url)
        if not address.scheme and address.path.endswith(".ipynb"):
            page = page_name(PurePosixPath(address.path).stem, self.staff)
            url = address._replace(path=page).geturl()
        return super().link(text, url, title)

    def image(self, text: str, url: str, title: str | None = None) -> str:
        tag = super().image(text, url, title)
        if 'src="data:' not in tag:
            raise HandoutError(f"the picture {url!r} is not a file in the notebook's folder")
        return tag

    def inline_math(self, body: str) -> str:
        formula = _formula(body, "inline")
        is_long = len(re.sub("<[^>]*>", "", formula)) > LONGEST_FORMULA
        return f'<span class="long-formula">{formula}</span>' if is_long else formula

    def block_math(self, body: str) -> str:
        return f'<span class="formula">{_formula(body, "block")}</span>'

    def latex_environment(self, name: str, body: str) -> str:
        return self.block_math(rf"\begin{{{name}}}{body}\end{{{name}}}")


def clean_html(markup: str) -> str:
    """The markup without anything that runs, loads from elsewhere or restyles the page; text between tags stays."""
    without_code = re.sub(r"<(script|style)\b.*?(</\1\s*>|\Z)", "", str(markup), flags=re.DOTALL | re.IGNORECASE)
    cleaned = bleach.clean(
        without_code,
        tags=KEPT_TAGS,
        attributes=_keeps_attribute,
        protocols={"http", "https", "mailto", "data"},
        css_sanitizer=CSSSanitizer(allowed_css_properties=KEPT_STYLES),
        strip=True,
    )
    return TABLE_CELL.sub(_marked_if_chinese, cleaned)


def _marked_if_chinese(cell: re.Match) -> str:
    """A table's cell that is mostly Chinese says so; a term, as opposed to a sentence, stays on one line."""
    tag, attributes, text = cell.groups()
    letters = len(CHINESE.findall(text))
    if 2 * letters < len(text) or not letters:
        return cell[0]
    term = ' class="term"' if letters <= LONGEST_TERM else ""
    return f'<{tag}{attributes} lang="zh-Hant"{term}>{text}'


def lines(code: str) -> str:
    """Highlighted code with each line apart, so that a long one goes on below itself: code two columns further in."""
    before, inside, after = re.match(r"(.*?<pre>(?:<span></span>)?)(.*?)\n?(</pre>.*)", code, re.DOTALL).groups()
    return before + "".join(map(_hanging, inside.split("\n"))) + after


def _hanging(line: str) -> str:
    text = re.sub("<[^>]*>", "", line)
    further = 0 if '<span class="sd">' in line else 2  # a docstring is prose
    return f'<span class="line" style="--indent: {len(text) - len(text.lstrip()) + further}ch">{line}\n</span>'


def asks(cell: NotebookNode) -> bool:
    """Whether a cell does nothing but ask for guesses: its question is text, and its code needn't be seen."""
    return bool(cell.outputs) and all(QUESTION in output.get("data", {}) for output in cell.outputs)


def answers(cell: NotebookNode) -> bool:
    """Whether a cell answers a question: what it shows stands behind a tap."""
    return any(ANSWER in output.get("data", {}) for output in cell.outputs)


def _keeps_attribute(tag: str, name: str, value: str) -> bool:
    if name == "src":
        return tag == "img" and value.startswith("data:image/")
    if name == "href":
        return tag == "a" and urlsplit(value).scheme in ("", "http", "https", "mailto")
    if name == "style":
        return "url(" not in value.lower()
    return name in KEPT_ATTRIBUTES


def _formula(latex: str, display: str) -> str:
    try:
        return mathml(latex.strip(), display=display)
    except Exception as error:  # the library has a dozen classes of its own for what it can't parse
        raise HandoutError(f"the formula {latex.strip()!r} can't be set ({type(error).__name__})") from None
