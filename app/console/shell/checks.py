"""Validates texts while they are typed: fragments of HTML for `static/console/checks.js`."""

from __future__ import annotations

from collections.abc import Sequence

from flask import render_template

from app.console.shell import forms, json_texts
from app.console.shell.access import ADMIN
from app.console.shell.blueprint import page
from app.console.shell.excerpts import excerpt
from app.types import JSONMapping
from app.web.languages import gettext


@page("/console/json/check", "POST", role=ADMIN)
def check_json() -> str:
    """Validate a text as JSON."""
    text = submitted()
    fault = json_texts.fault(text) if text else None
    return render_template(
        "console/verdict.html",
        text=text,
        messages=[fault.message] if fault else [],
        at=fault.position if fault else None,
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
