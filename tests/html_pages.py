"""What tests ask of a page: its elements as a browser sees them, its pictures, and whatever loads or runs."""

import re
from html.parser import HTMLParser
from urllib.parse import urlsplit

RUNNING_TAGS = {"script", "link", "iframe", "object", "embed", "base"}
LOADING_ATTRIBUTES = {"src", "srcset", "href", "poster", "data", "action", "background"}


class Elements(HTMLParser):
    """The elements of a page as a browser sees them: `found` holds (tag, attributes, text of a style)."""

    def __init__(self, page: str):
        super().__init__()
        self.found: list[tuple[str, dict[str, str]]] = []
        self.styles = ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, {name: value or "" for name, value in attrs}))

    def handle_data(self, data):
        if self.found and self.found[-1][0] == "style":
            self.styles += data


def loads_or_runs(page: str) -> list[str]:
    """Everything in a page that fetches something or executes: none of it belongs in a handout."""
    elements = Elements(page)
    faults = [tag for tag, _ in elements.found if tag in RUNNING_TAGS]
    for tag, attributes in elements.found:
        for name, value in attributes.items():
            loads = name in LOADING_ATTRIBUTES and tag != "a" and not value.startswith("data:image/")
            jumps = name == "href" and urlsplit(value.strip()).scheme not in ("", "http", "https", "mailto")
            if loads or jumps or name.startswith("on") or (name == "style" and "url(" in value):
                faults.append(f"{tag} {name}={value[:60]}")
    return faults + re.findall(r"@import.*|url\(.*", elements.styles)


def images(page: str) -> list[dict[str, str]]:
    return [attributes for tag, attributes in Elements(page).found if tag == "img"]
