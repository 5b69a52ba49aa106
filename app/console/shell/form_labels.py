"""The labels of a page's inputs, for the links of its error summary.

Inputs have their labels in the templates: links that name them would repeat each.
"""

from __future__ import annotations

import html
import re
from html.parser import HTMLParser

from markupsafe import escape

MARK = "data-labelled"
LINK = re.compile(rf'(<a href="#([^"]+)" {MARK}>)[^<]*</a>')
WITHOUT_LABELS = ("select", "small", "textarea")


def fill(page: str) -> str:
    """The page with its marked links named as the inputs that they lead to."""
    labels = _Labels()
    labels.feed(page)

    def named(link: re.Match[str]) -> str:
        label = labels.by_name.get(html.unescape(link[2]))
        return f"{link[1]}{escape(label)}</a>" if label else link[0]

    return LINK.sub(named, page)


class _Labels(HTMLParser):
    """The labels by the names or ids of inputs and fieldsets."""

    def __init__(self) -> None:
        super().__init__()
        self.by_name: dict[str, str] = {}
        self._names: list[str] = []
        self._text: list[str] | None = None  # of an open label
        self._fieldset = self._without = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "fieldset":
            self._fieldset = given.get("id", "")
        elif tag in ("label", "legend"):
            names = given.get("for", "") if tag == "label" else self._fieldset
            self._names, self._text = [names], []
        elif self._text is not None:
            self._names += [given.get("id", ""), given.get("name", "")]
            self._without = self._without or (tag if tag in WITHOUT_LABELS else "")

    def handle_data(self, data: str) -> None:
        if self._text is not None and not self._without:
            self._text.append(data)

    def handle_endtag(self, tag: str) -> None:
        if tag == self._without:
            self._without = ""
        if tag in ("label", "legend") and self._text is not None:
            text = " ".join("".join(self._text).split())
            for name in filter(None, self._names):
                self.by_name.setdefault(name, text)
            self._text = None
