"""Validates texts while they are typed: fragments of HTML for `static/console/checks.js`.

A fault is marked within its surroundings, as is what differs between two texts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

import orjson
from flask import render_template
from markupsafe import Markup

from app.console.shell import forms
from app.console.shell.access import USER
from app.console.shell.blueprint import page
from app.types import JSONMapping, JSONObject
from app.web.languages import gettext

CONTEXT_LENGTH = 60
MIN_COMMON = 10  # characters that two texts share before their difference is marked
WORD = re.compile(r"@?\w+|\S")


@page("/console/json/check", "POST", role=USER)
def check_json() -> str:
    """Validate a text as JSON."""
    text = submitted()
    found = fault(text) if text else None
    return render_template(
        "console/verdict.html",
        text=text,
        messages=[found.message] if found else [],
        at=found.position if found else None,
        valid=gettext("Valid JSON."),
    )


def submitted() -> str:
    """The submitted text with the line ends that the browser counts."""
    return forms.text("text").replace("\r\n", "\n")


def verdict_of_expression(
    text: str,
    problems: Sequence[JSONMapping],
    valid: str,
    name: str | None = None,
    warnings: Sequence[JSONMapping] = (),
) -> str:
    position = problems[0].get("position") if problems else None
    shown = excerpt(text, position) if position is not None else None
    return render_template(
        "console/verdict.html",
        text=text,
        name=name,
        messages=[problem["message"] for problem in problems],
        shown=shown,
        valid=valid,
        warnings=[(one["message"], excerpt(text, one["position"])) for one in warnings],
    )


@dataclass(frozen=True)
class Fault:
    """An error in a text, and its position in characters."""

    message: str
    position: int


def fault(text: str) -> Fault | None:
    """The fault of a text that is no JSON; None if it is, even if it breaks another limit."""
    try:
        orjson.loads(text.encode(errors="replace"))
    except orjson.JSONDecodeError as error:
        message = error.msg.removeprefix("unexpected character, ").removesuffix(" (BOM)")
        where = gettext(
            "Line %(line)s, column %(column)s: %(message)s.",
            line=error.lineno,
            column=error.colno,
            message=message,
        )
        return Fault(where, error.pos)
    return None


def place(text: str) -> JSONObject:
    """The position of a text's fault, for the problem of its field."""
    found = fault(text)
    return {"position": found.position} if found else {}


@dataclass(frozen=True)
class Excerpt:
    """A marked part with the text around it; `column` counts characters from 1."""

    before: str
    marked: str
    after: str
    column: int


def excerpt(text: str, position: int) -> Excerpt:
    """The word at a position with nearby text; marks nothing at the end of the text."""
    word = WORD.match(text, position)
    end = word.end() if word else position
    before = text[max(position - CONTEXT_LENGTH, 0) : position]
    after = text[end : end + CONTEXT_LENGTH]
    before = f"…{before}" if position > CONTEXT_LENGTH else before
    after = f"{after}…" if len(text) > end + CONTEXT_LENGTH else after
    return Excerpt(before, text[position:end], after, position + 1)


def highlight(text: str, part: str, position: int) -> Excerpt:
    """The whole text with one part marked."""
    end = position + len(part)
    return Excerpt(text[:position], part, text[end:], position + 1)


def differences(before: str | None, after: str | None) -> tuple[Excerpt, Excerpt] | None:
    """Both texts with what differs marked; None if they share too little, or are markup."""
    if not before or not after or isinstance(before, Markup) or isinstance(after, Markup):
        return None
    start = _common_start(before, after)
    same_end = _common_start(before[start:][::-1], after[start:][::-1])
    if start + same_end < MIN_COMMON:
        return None
    old, new = (text[start : len(text) - same_end] for text in (before, after))
    return highlight(before, old, start), highlight(after, new, start)


def _common_start(first: str, second: str) -> int:
    pairs = zip(first, second, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
