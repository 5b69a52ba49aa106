"""What a form sent, and what is wrong with it, said beside each field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from flask import flash, redirect, render_template, request, url_for
from werkzeug.wrappers import Response as BaseResponse

from app import clock
from app.errors import AppError, Conflict, InvalidValues, RecentSignInRequired, problem
from app.rest.schemas import Schema

Page = tuple[str, int]
# Refusals that a form can tell of; whatever else goes wrong has a page of its own.
TOLD_IN_FORM = (400, 401, 403, 409, 428, 429)
UNSIGNED = "This reaches records that are changed with an electronic signature only: sign it."
CHANGED = (
    "Somebody else has changed this meanwhile. Below is what you typed: open the page anew to see"
    " what it is now, or save again to write it over."
)
LONGEST_PASSWORD = 20_000
MOST_CHOSEN = 100


@dataclass
class Form:
    """The values of a form by field, and the messages to show with them."""

    values: dict[str, str] = field(default_factory=dict)
    chosen: list[str] = field(default_factory=list)
    errors: dict[str, list[str]] = field(default_factory=dict)
    problem: str | None = None
    status: int = 200

    def checked(self, needed: Sequence[str] = (), **longest: int) -> dict[str, str]:
        """The values, once those needed are there and none is too long. Raises InvalidValues."""
        found = [problem(name, "required", "Fill this in.") for name in needed if not self[name]]
        for name, most in longest.items():
            if len(self[name]) > most:
                found.append(problem(name, "too_long", f"At most {most} characters."))
        if found:
            raise InvalidValues(found)
        return dict(self.values)

    def refused(self, error: AppError) -> Form:
        """Take in what an error says; one that no form can tell of is raised on."""
        if error.status not in TOLD_IN_FORM or isinstance(error, RecentSignInRequired):
            raise error
        self.status = error.status
        for name, message in _messages(error):
            if name in self.values:
                self.errors.setdefault(name, []).append(message)
            else:
                self.problem = f"{self.problem} {message}" if self.problem else message
        return self

    def page(self, template: str, **context: Any) -> Page:
        """The page with this form."""
        return render_template(template, form=self, **context), self.status

    def __getitem__(self, name: str) -> str:
        return self.values.get(name, "")


def sent(*names: str, chosen: str | None = None) -> Form:
    """The form as it was sent; `chosen` names the field of several values."""
    values = {name: text(name) for name in names}
    if chosen is None:
        return Form(values)
    several = [one.replace("\0", "") for one in request.form.getlist(chosen)[:MOST_CHOSEN]]
    return Form({**values, chosen: ""}, several)


def check_seen(form: Form, changed: datetime) -> None:
    """Refuse once to write over what was changed after the form was opened. Raises Conflict."""
    seen, form.values["seen"] = form["seen"], clock.iso(changed)
    if seen and seen != form["seen"]:
        raise Conflict(CHANGED)


def fitting(schema: Schema, body: dict[str, Any]) -> dict[str, Any]:
    """A body that the API would take. Raises InvalidValues for what does not fit its schema."""
    found = [
        problem(name, "too_long", _first(told)) for name, told in schema.validate(body).items()
    ]
    if found:
        raise InvalidValues(found)
    return body


def _first(told: Any) -> str:
    while not isinstance(told, str):
        told = next(iter(told.values() if isinstance(told, Mapping) else told))
    return told


def text(name: str) -> str:
    """One value of the form, without the blanks around it; passwords as they are."""
    # No text of a form contains a NUL, and PostgreSQL refuses it.
    value = request.form.get(name, "").replace("\0", "")
    return value if "password" in name else value.strip()


def told(notice: str, endpoint: str, **values: Any) -> BaseResponse:
    """Go on to a page, which shows the notice once."""
    flash(notice)
    return redirect(url_for(endpoint, **values), 303)


def _messages(error: AppError) -> list[tuple[str | None, str]]:
    details: Sequence[Mapping[str, Any]] = error.extra.get("details") or ()
    if details:
        return [(one["field"], one["message"]) for one in details]
    return [(error.extra.get("field"), UNSIGNED if error.status == 428 else error.message)]
