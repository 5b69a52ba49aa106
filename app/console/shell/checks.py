"""Validates texts while they are typed: fragments of HTML for `static/console/checks.js`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import orjson
from flask import render_template

from app.console.shell import forms
from app.console.shell.access import USER
from app.console.shell.blueprint import page
from app.console.shell.excerpts import excerpt
from app.types import JSONMapping, JSONObject
from app.web.languages import gettext


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
    text: str, problems: Sequence[JSONMapping], valid: str, name: str | None = None
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
