"""Text and HTML of mails from templates with placeholders: `{{ link }}`.

HTML is parsed into tags of an allow-list and texts, and written anew from them, so whatever is no
such tag is text and escaped. There are no expressions: a placeholder is replaced once, by a value
that is escaped, too.
"""

from __future__ import annotations

import re
import textwrap
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape, unescape
from itertools import islice

PLACEHOLDER = re.compile(r"\{\{\s*([a-z_.]+)\s*\}\}")
LINK = "link"
LINK_ONLY = re.compile(r"\s*\{\{\s*link\s*\}\}\s*")
LABELLED_LINK = re.compile(r"\s*([^{}]{1,40}):\s+\{\{\s*link\s*\}\}\s*")
BUTTON = (
    "display: inline-block; padding: 10px 20px; border: 2px solid; border-radius: 6px;"
    " color: inherit; font-weight: bold; text-decoration: none"
)
# Whatever touches a link may become part of it: `{{ link }}.example`, `{{ link }}@example`.
TOUCHED_LINK = re.compile(r"[^\s(]\{\{\s*link\s*\}\}|\{\{\s*link\s*\}\}[^\s)]")
WIDTH = 100
VOID = {"br", "hr"}
PARAGRAPHS = {"p", "div", "h1", "h2", "h3", "h4", "ul", "ol", "table", "blockquote", "pre", "hr"}
LINES = {"br", "li", "tr"}
TAGS = {*PARAGRAPHS, *LINES, *VOID, "a", "b", "strong", "i", "em", "u", "s", "small", "span"}
TAGS |= {"code", "thead", "tbody", "tfoot", "td", "th"}
_NUMBER, _ALIGN = r"\d{1,4}%?", "left|right|center|justify"
ATTRIBUTES: Mapping[str, re.Pattern[str]] = {
    name: re.compile(pattern)
    for name, pattern in {
        "align": _ALIGN,
        "valign": "top|middle|bottom|baseline",
        "width": _NUMBER,
        "height": _NUMBER,
        "border": _NUMBER,
        "cellpadding": _NUMBER,
        "cellspacing": _NUMBER,
        "colspan": _NUMBER,
        "rowspan": _NUMBER,
        "bgcolor": r"#[0-9a-fA-F]{6}|[a-z]{3,20}",
        "role": "presentation",
    }.items()
}
STYLES = {
    *("color", "background-color", "font-family", "font-size", "font-style", "font-weight"),
    *("line-height", "letter-spacing", "text-align", "text-decoration", "vertical-align"),
    *("padding", "padding-top", "padding-right", "padding-bottom", "padding-left"),
    *("margin", "margin-top", "margin-right", "margin-bottom", "margin-left"),
    *("border", "border-top", "border-right", "border-bottom", "border-left", "border-color"),
    *("border-radius", "border-collapse", "width", "max-width", "white-space"),
}
# No functions, which load or compute, no escapes and comments, and no way out of the mail's body.
STYLE_VALUE = re.compile(r"(?!.*(?:^|[\s,])-)[\w\s#%.,'\"!-]+", re.DOTALL)
# What mail programs turn into links: addresses, names with a dot, shares, and words before a colon.
_AUTOMATIC_LINK = re.compile(
    r"://|\bwww\.|\\\\|\S@\S|\S[.\u3002](?=[^\W\d_]{2}|xn--)|\d\.\d++\.\d++\.\d"
    r"|\b[a-z][a-z0-9+.-]{0,30}:(?=[^\s:,;)])",
    re.IGNORECASE,
)
_JOINERS = str.maketrans("", "", "\u200c\u200d")
MAX_FAULTS = 50
_OPENING = re.compile(r"<[A-Za-z/!?]")
# Possessive, so that nothing that is sent takes more than linear time.
_VALUE = r"\s*+=\s*+(?:\"[^\"]*+\"|'[^']*+')"
_TAG = re.compile(
    r"<(?P<is_end>/?)(?P<name>[A-Za-z][A-Za-z0-9]*+)"
    rf"(?P<attributes>(?:\s++[A-Za-z][A-Za-z-]*+(?:{_VALUE})?)*+)\s*+/?>"
)
_ATTRIBUTE = re.compile(
    r"\s++(?P<name>[A-Za-z][A-Za-z-]*+)(?:\s*+=\s*+(?P<value>\"[^\"]*+\"|'[^']*+'))?"
)
_REFERENCE = re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});")
NOT_A_TAG = "This is no tag: name elements, quote values, and write &lt; for a sign of its own."
NO_CONTROLS = "Control characters, also those of writing directions, are not allowed."


@dataclass(frozen=True)
class Fault:
    """What a template may not have, and where: the line and column, from 1."""

    message: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.message} Line {self.line}, column {self.column}."


@dataclass(frozen=True)
class Tag:
    name: str
    attributes: tuple[tuple[str, str], ...] = ()
    is_end: bool = False


Token = Tag | str


def parse(source: str, may_lead_to: Callable[[str], bool]) -> tuple[list[Token], list[Fault]]:
    """The tokens of HTML, and its faults; `may_lead_to` judges the addresses of links."""
    parser = _Parser(source, may_lead_to)
    parser.run()
    return parser.tokens, parser.faults


class _Parser:
    """Takes well-formed tags alone: whoever repairs others decides what they become."""

    def __init__(self, source: str, may_lead_to: Callable[[str], bool]) -> None:
        self.source, self.may_lead_to = source, may_lead_to
        self.tokens: list[Token] = []
        self.faults: list[Fault] = []
        self.open: list[tuple[str, int]] = []
        self.in_link = False

    def run(self) -> None:
        end = 0
        for start in _OPENING.finditer(self.source):
            at = start.start()
            if at < end:
                continue
            self.tokens.append(_unescaped(self.source[end:at]))
            tag = _TAG.match(self.source, at)
            if tag is None:
                self.add_fault(NOT_A_TAG, at)
                end = start.end()
                continue
            end = tag.end()
            name = tag["name"].lower()
            if name not in TAGS:
                self.add_fault(f"The element <{name[:30]}> is not allowed.", at)
            elif tag["is_end"]:
                self.close(name, at)
            else:
                self.start(name, tag["attributes"], at)
        self.tokens.append(_unescaped(self.source[end:]))
        for name, at in reversed(self.open):
            self.add_fault(f"The element <{name}> is not closed.", at)
            self.tokens.append(Tag(name, is_end=True))

    def start(self, name: str, attributes: str, at: int) -> None:
        if name == "a" and self.in_link:
            self.add_fault("A link stands within another one.", at)
            return
        allowed = []
        for match in _ATTRIBUTE.finditer(attributes):
            value = _unescaped(match["value"][1:-1] if match["value"] else "")
            if self.is_allowed(name, match["name"].lower(), value):
                allowed.append((match["name"].lower(), value))
            else:
                shown = f'{match["name"][:30]}="{value[:100]}"'
                self.add_fault(f"The attribute {shown} of <{name}> is not allowed.", at)
        self.tokens.append(Tag(name, tuple(dict(allowed).items())))
        if name not in VOID:
            self.open.append((name, at))
            self.in_link = self.in_link or name == "a"

    def close(self, name: str, at: int) -> None:
        if self.open and self.open[-1][0] == name:
            self.open.pop()
            self.in_link = self.in_link and name != "a"
            self.tokens.append(Tag(name, is_end=True))
        else:
            self.add_fault(f"The end tag </{name}> closes nothing that is open here.", at)

    def is_allowed(self, tag: str, name: str, value: str) -> bool:
        if name == "href":
            return tag == "a" and self.may_lead_to(value.strip())
        if name == "style":
            return all(map(_is_style, filter(str.strip, value.split(";"))))
        return name in ATTRIBUTES and ATTRIBUTES[name].fullmatch(value) is not None

    def add_fault(self, message: str, at: int) -> None:
        if len(self.faults) < MAX_FAULTS:
            self.faults.append(fault_at(message, self.source, at))


def _unescaped(text: str) -> str:
    return _REFERENCE.sub(lambda match: unescape(match[0]), text)


def _is_style(declaration: str) -> bool:
    name, _, value = declaration.partition(":")
    return name.strip().lower() in STYLES and STYLE_VALUE.fullmatch(value.strip()) is not None


def tokens_of_text(text: str) -> list[Token]:
    """The tokens of plain text: paragraphs between empty lines.

    A line such as `Join: {{ link }}` gets a button above the address.
    """
    tokens: list[Token] = []
    for paragraph in re.split(r"\n[ \t]*\n\s*", text.strip()):
        tokens.append(Tag("p"))
        for number, line in enumerate(paragraph.split("\n")):
            tokens += [Tag("br")] if number else []
            if labelled := LABELLED_LINK.fullmatch(line):
                button = Tag("a", (("href", "{{ link }}"), ("style", BUTTON)))
                tokens += [button, labelled[1], Tag("a", is_end=True), Tag("br"), Tag("br")]
                line = "{{ link }}"
            tokens.append(line)
        tokens.append(Tag("p", is_end=True))
    return tokens


def to_html(tokens: Sequence[Token], values: Mapping[str, str]) -> str:
    """HTML with the values of placeholders. A link outside of `<a>` becomes one."""
    parts: list[str] = []
    in_link = False
    for token in tokens:
        if isinstance(token, str):
            parts += _html_of(token, values, is_link=in_link)
        elif token.is_end:
            in_link = in_link and token.name != "a"
            parts.append(f"</{token.name}>")
        else:
            in_link = in_link or token.name == "a"
            attributes = "".join(
                f' {name}="{escape(fill(value, values))}"' for name, value in token.attributes
            )
            parts.append(f"<{token.name}{attributes}>")
    return "".join(parts)


def _html_of(text: str, values: Mapping[str, str], *, is_link: bool) -> Iterator[str]:
    for name, part in _parts(text):
        value = escape(part if name is None else values.get(name, ""))
        if name is None:
            yield value
        elif name == LINK and value and not is_link:
            yield f'<a href="{value}">{value}</a>'
        else:
            yield value.replace("\n", "<br>")


def _parts(text: str) -> Iterator[tuple[str | None, str]]:
    """The texts of a template (None) and its placeholders."""
    end = 0
    for match in PLACEHOLDER.finditer(text):
        yield None, text[end : match.start()]
        yield match[1], match[0]
        end = match.end()
    yield None, text[end:]


def fill(text: str, values: Mapping[str, str]) -> str:
    """Text with the values of placeholders; those in values stay as they are."""
    return PLACEHOLDER.sub(lambda match: values.get(match[1], ""), text)


def to_text(tokens: Sequence[Token]) -> str:
    """The plain text of HTML, with its placeholders; addresses stand behind their links."""
    parts: list[str] = []
    address, label_starts, in_pre = "", 0, False
    for token in tokens:
        if isinstance(token, str):
            parts.append(token if in_pre else re.sub(r"\s+", " ", token))
        elif token.name in PARAGRAPHS:
            parts.append("\n\n")
            in_pre = token.name == "pre" and not token.is_end
        elif token.name in LINES and not token.is_end:
            parts.append("\n- " if token.name == "li" else "\n")
        elif token.name in ("td", "th") and token.is_end:
            parts.append(" ")
        elif token.name == "a" and token.is_end:
            label = "".join(parts[label_starts:])
            is_shown = LINK_ONLY.search(label) if LINK_ONLY.fullmatch(address) else address in label
            parts += [f" {address.strip()}"] if address and not is_shown else []
            address = ""
        elif token.name == "a":
            address, label_starts = dict(token.attributes).get("href", ""), len(parts)
    text = "\n".join(line.strip(" \t") for line in "".join(parts).split("\n"))
    return re.sub(r"\n{3,}", "\n\n", text).strip()


def wrap(text: str) -> str:
    """Text whose long lines are wrapped between words."""
    lines = (
        textwrap.fill(line, WIDTH, break_long_words=False, break_on_hyphens=False)
        if len(line) > WIDTH
        else line
        for line in text.split("\n")
    )
    return "\n".join(lines)


def control_fault(text: str, allowed: str = "\n\t") -> Fault | None:
    """The first control or invisible character, other than joiners of scripts that need them."""
    for at, character in enumerate(text):
        if character in allowed or character in "\u200c\u200d":
            continue
        if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp"):
            return fault_at(NO_CONTROLS, text, at)
    return None


def placeholder_faults(text: str, known: Sequence[str]) -> Iterator[Fault]:
    """Placeholders that there are not, and braces that open none."""
    stray = re.finditer(r"\{\{|\}\}", PLACEHOLDER.sub(_blank, text))
    for match in islice(stray, MAX_FAULTS):
        yield fault_at(
            f"{match[0]} is not part of a placeholder such as {{{{ link }}}}.", text, match.start()
        )
    unknown = (match for match in PLACEHOLDER.finditer(text) if match[1] not in known)
    for match in islice(unknown, MAX_FAULTS):
        listed = ", ".join(known)
        yield fault_at(
            f"There is no placeholder {match[1][:50]}. Use: {listed}.", text, match.start()
        )


def _blank(match: re.Match[str]) -> str:
    return " " * len(match[0])


def automatic_link(text: str) -> str | None:
    """What a mail program would turn into a link in this text, if anything."""
    plain = unicodedata.normalize("NFKD", text).translate(_JOINERS)
    plain = "".join(one for one in plain if unicodedata.category(one) != "Mn")
    match = _AUTOMATIC_LINK.search(plain)
    return plain[max(match.start() - 20, 0) : match.end() + 20].strip() if match else None


def fault_at(message: str, text: str, at: int) -> Fault:
    """A fault at an offset of a text."""
    line_start = text.rfind("\n", 0, at) + 1
    return Fault(message, text.count("\n", 0, at) + 1, at - line_start + 1)
