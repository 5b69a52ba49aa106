"""Submitted form values, and their errors by field."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import wraps
from typing import Any, TypeVar, cast, overload

from flask import flash, g, redirect, render_template, request, url_for
from werkzeug.wrappers import Response as BaseResponse

from app import clock
from app.console.shell import error_texts, form_labels
from app.errors import AppError, Conflict, InvalidValues, RecentSignInRequired, problem
from app.types import JSONObject
from app.web.languages import gettext, lazy_gettext
from app.web.schemas import Schema

View = TypeVar("View", bound=Callable[..., Any])
FormT = TypeVar("FormT", bound="Form")
Page = tuple[str, int]  # HTML and status
Problem = JSONObject  # as `errors.problem` returns it
TemplateContext = JSONObject
# Errors with these statuses show in the form; others get a page of their own.
FORM_STATUSES = (400, 401, 403, 409, 428, 429)
SIGNATURE_REQUIRED = lazy_gettext(
    "This changes records that require an electronic signature. Sign it."
)
CHANGED = lazy_gettext(
    "Somebody else has changed this in the meantime. Your entries are below: reload the page to see"
    " the current values, or save again to overwrite them."
)
MAX_PASSWORD_LENGTH = 20_000
MAX_SELECTED = 100
SECRETS = re.compile("password|passphrase")


@dataclass
class Form:
    """The values of a form by field, and the errors to show with them."""

    values: dict[str, str] = field(default_factory=dict)
    selected: list[str] = field(default_factory=list)
    errors: dict[str, list[str]] = field(default_factory=dict)
    positions: dict[str, int] = field(default_factory=dict)
    """The position of the error in the text of a field, in characters from its start."""
    problem: str | None = None
    status: int = 200
    error: str = ""
    """The code of what was refused."""

    def validated(self, required: Sequence[str] = (), **max_lengths: int) -> dict[str, str]:
        """The values if the required ones are present and none is too long.

        Raises InvalidValues.
        """
        problems = [
            problem(name, "required", gettext("Required.")) for name in required if not self[name]
        ]
        for name, limit in max_lengths.items():
            if len(self[name]) > limit:
                problems.append(problem(name, "too_long", _at_most(limit)))
        if problems:
            raise InvalidValues(problems)
        return dict(self.values)

    def with_error(self, error: AppError) -> Form:
        """This form with the messages of an error; raises an error that forms cannot show."""
        if error.status not in FORM_STATUSES or isinstance(error, RecentSignInRequired):
            raise error
        self.status, self.error = error.status, error.error
        self.note_positions(error)
        for name, message in _messages(error):
            if name in self.values:
                self.errors.setdefault(name, []).append(message)
            else:
                self.problem = f"{self.problem} {message}" if self.problem else message
        return self

    def note_positions(self, error: AppError) -> None:
        """Remember where the errors are that have a position."""
        for detail in error.extra.get("details") or ():
            if "position" in detail:
                self.positions.setdefault(detail["field"], detail["position"])

    def over(self, stored: FormT) -> FormT:
        """The form as stored, with what was submitted of it and the errors."""
        stored.selected = self.selected if self.values else stored.selected
        stored.values |= self.values
        stored.errors |= self.errors
        stored.positions |= self.positions
        stored.problem, stored.status = self.problem, self.status
        return stored

    def render(self, template: str, **context: object) -> Page:
        page = render_template(template, form=self, **context)
        return form_labels.fill(page) if form_labels.MARK in page else page, self.status

    def __getitem__(self, name: str) -> str:
        return self.values.get(name, "")


@overload
def submitted(*names: str, selected: str | None = None) -> Form: ...
@overload
def submitted(*names: str, selected: str | None = None, kind: type[FormT]) -> FormT: ...
def submitted(*names: str, selected: str | None = None, kind: type[Form] = Form) -> Form:
    """The submitted form; `selected` names the field with several values."""
    form = show_errors_in(kind({name: text(name) for name in names}))
    if selected is not None:
        form.values[selected] = ""
        choices = request.form.getlist(selected)[:MAX_SELECTED]
        form.selected = [value.replace("\0", "") for value in choices]
    return form


def show_errors_in(form: FormT) -> FormT:
    """Let the form page of this request show its errors in a form; returns the form."""
    g.submitted_form = form
    return form


def accept() -> None:
    """End the part of a view whose errors show in its form: later ones get a page of their own."""
    g.submitted_form_accepted = True


def shown_again(view: View, form_page: Callable[..., Page | BaseResponse]) -> View:
    """The view of a form or button, whose errors show on its page, with the form as submitted.

    `form_page` is called with the form, and with those arguments of the address that it names.
    """
    names = inspect.signature(form_page).parameters

    @wraps(view)
    def run(**url_args: object) -> object:
        g.submitted_form, g.submitted_form_accepted = None, False
        try:
            return view(**url_args)
        except AppError as error:
            if g.submitted_form_accepted:
                raise
            form: Form = g.submitted_form or Form()  # a button submits none
            known = {name: value for name, value in url_args.items() if name in names}
            return form_page(**known, form=form.with_error(error))

    return cast(View, run)


def check_unchanged(form: Form, updated_at: datetime) -> None:
    """Refuse once to overwrite what changed since the form was rendered. Raises Conflict."""
    seen, form.values["seen"] = form["seen"], clock.iso(updated_at)
    if seen and seen != form["seen"]:
        raise Conflict(str(CHANGED))


def validated(schema: Schema, body: JSONObject) -> JSONObject:
    """The body if it fits the API's schema. Raises InvalidValues."""
    errors = schema.validate(body)
    problems = [problem(name, "too_long", _first_message(error)) for name, error in errors.items()]
    if problems:
        raise InvalidValues(problems)
    return body


def _at_most(limit: int) -> str:
    return gettext("At most %(limit)s characters.", limit=limit)


def _first_message(error: Any) -> str:
    while not isinstance(error, str):
        error = next(iter(error.values() if isinstance(error, Mapping) else error))
    return error


def text(name: str) -> str:
    """A submitted value, stripped unless it is a password or passphrase."""
    # Browsers submit no NUL characters, and PostgreSQL refuses them.
    value = request.form.get(name, "").replace("\0", "")
    return value if SECRETS.search(name) else value.strip()


def redirect_with_notice(notice: str, endpoint: str, **url_args: Any) -> BaseResponse:
    """Redirect to a page that shows the notice once."""
    flash(notice)
    return redirect(url_for(endpoint, **url_args), 303)


def _messages(error: AppError) -> list[tuple[str | None, str]]:
    details: Sequence[Problem] = error.extra.get("details") or ()
    if details:
        return [(detail["field"], error_texts.translate(detail["message"])) for detail in details]
    message = str(SIGNATURE_REQUIRED) if error.status == 428 else error.message
    return [(error.extra.get("field"), error_texts.translate(message))]
