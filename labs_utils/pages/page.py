"""An executed notebook as one self-contained HTML page: no script, nothing from elsewhere, formulas as MathML."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

import bleach
from bleach.css_sanitizer import ALLOWED_CSS_PROPERTIES, CSSSanitizer
from jinja2 import pass_context
from latex2mathml.converter import convert as mathml
from nbconvert import HTMLExporter
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath, MathBlockParser
from nbformat import NotebookNode

SHOWN_FORMATS = ("text/html", "text/markdown", "text/latex", "image/svg+xml", "image/png", "image/jpeg", "text/plain")
KEPT_TAGS = frozenset(
    "a abbr b blockquote br caption code col colgroup dd del details div dl dt em figcaption figure h1 h2 h3 h4 h5 h6 "
    "hr i img input kbd li mark ol p pre s small span strong sub summary sup table tbody td tfoot th thead tr u ul var "
    "math semantics mi mn mo ms mtext mspace mrow mfrac msqrt mroot mstyle merror mpadded mphantom menclose msub msup "
    "msubsup munder mover munderover mmultiscripts mtable mtr mtd".split()
)
KEPT_ATTRIBUTES = frozenset(
    "align alt checked class colspan disabled height href id open rowspan scope src start style title type width "
    "xmlns display mathvariant stretchy fence separator form lspace rspace linethickness columnalign rowspacing "
    "columnspacing columnlines rowlines accent accentunder movablelimits minsize maxsize symmetric notation depth "
    "displaystyle scriptlevel mathcolor mathbackground mathsize".split()
)
KEPT_STYLES = ALLOWED_CSS_PROPERTIES | {"border", "border-left", "border-radius", "margin", "padding", "max-width"}


class HandoutError(RuntimeError):
    """A handout that can't be made: one sentence naming the notebook, the cell and what went wrong."""


def to_html(notebook: NotebookNode, name: str, folder: Path = Path()) -> str:
    """One HTML page of an executed notebook, with styles, figures and mathematics inside and no script.

    `name` is the title of a notebook without a heading; pictures that the text shows are looked for in `folder`.

    Raises:
        HandoutError: one sentence, when a formula can't be set or a picture isn't there.
    """
    resources = {"metadata": {"name": title_of(notebook) or name, "path": str(folder)}, "headings": []}
    try:
        return HandoutExporter().from_notebook_node(notebook, resources=resources)[0]
    except HandoutError as error:
        raise HandoutError(f"{name}: {error}") from None


def title_of(notebook: NotebookNode) -> str | None:
    """The notebook's first top heading as plain text, or None."""
    for cell in notebook.cells:
        heading = cell.cell_type == "markdown" and re.search(r"^# +(.+)$", cell.source, re.MULTILINE)
        if heading:
            return re.sub(r"[*`]", "", heading[1]).strip()
    return None


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
        yield ("clean_html", clean_html)

    @pass_context
    def markdown2html(self, context, source: str) -> str:
        """HTML of Markdown; headings are noted in `resources.headings` for the table of contents."""
        resources = context["resources"]
        renderer = _Renderer(
            resources["headings"],
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

    def __init__(self, headings: list[dict], **options):
        super().__init__(**options)
        self.headings = headings

    def heading(self, text: str, level: int, **_) -> str:
        self.headings.append({"id": f"section-{len(self.headings) + 1}", "level": level, "html": text})
        return f'<h{level} id="{self.headings[-1]["id"]}">{text}</h{level}>\n'

    def block_html(self, html: str) -> str:
        return html  # nbconvert looks for pictures here, and closes tags such as <details> too early

    inline_html = block_html

    def image(self, text: str, url: str, title: str | None = None) -> str:
        tag = super().image(text, url, title)
        if 'src="data:' not in tag:
            raise HandoutError(f"the picture {url!r} is not a file in the notebook's folder")
        return tag

    def inline_math(self, body: str) -> str:
        return _formula(body, "inline")

    def block_math(self, body: str) -> str:
        return f'<span class="formula">{_formula(body, "block")}</span>'

    def latex_environment(self, name: str, body: str) -> str:
        return self.block_math(rf"\begin{{{name}}}{body}\end{{{name}}}")


def clean_html(markup: str) -> str:
    """The markup without anything that runs, loads from elsewhere or restyles the page; text between tags stays."""
    without_code = re.sub(r"<(script|style)\b.*?(</\1\s*>|\Z)", "", str(markup), flags=re.DOTALL | re.IGNORECASE)
    return bleach.clean(
        without_code,
        tags=KEPT_TAGS,
        attributes=_keeps_attribute,
        protocols={"http", "https", "mailto", "data"},
        css_sanitizer=CSSSanitizer(allowed_css_properties=KEPT_STYLES),
        strip=True,
    )


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
