"""Submitted forms: their values, errors by field, rows of inputs, and effects that come once.

Creating forms carry a signed id. The script prevents double submits, but not every browser runs
it. The new row's id is derived from the form's id and the submitted values: going back and
submitting other values creates another row.
"""

from __future__ import annotations

import hashlib
import html
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache, wraps
from html.parser import HTMLParser
from typing import Any, TypeVar, cast, overload

import flask_babel
import orjson
import re2
from flask import flash, g, redirect, render_template, request, url_for
from itsdangerous import BadSignature
from markupsafe import escape
from werkzeug.wrappers import Response as BaseResponse

from app import clock, crypto
from app.audit import recent
from app.errors import AppError, Conflict, InvalidValues, NotFound, RecentSignInRequired, problem
from app.ids import new_id
from app.types import JSONObject
from app.web import languages
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
LABEL_MARK = "data-labelled"
MARKED_LINK = re.compile(rf'(<a href="#([^"]+)" {LABEL_MARK}>)[^<]*</a>')
WITHOUT_LABELS = ("select", "small", "textarea")
PLACEHOLDER = re.compile(r"\{(\w+)\}")
MAX_ERROR_LENGTH = 2_000  # characters; longer messages are not looked up
ROW_STEPS = {"up": -1, "down": 1}
FORM_ID = "as"
FORM_ID_SALT = "the id of a new record"
NODE_START = 24  # where the last part of an id begins


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
        return fill_labels(page) if LABEL_MARK in page else page, self.status

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

    `form_page` is called with the form, and with those arguments of the address that it takes.
    """
    names = getattr(form_page, "url_args", None) or inspect.signature(form_page).parameters

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
        return [(detail["field"], error_text(detail["message"])) for detail in details]
    message = str(SIGNATURE_REQUIRED) if error.status == 428 else error.message
    return [(error.extra.get("field"), error_text(message))]


def fill_labels(page: str) -> str:
    """The page with its marked links named as the inputs that they lead to.

    Inputs have their labels in the templates: links that name them would repeat each.
    """
    labels = _Labels()
    labels.feed(page)

    def named(link: re.Match[str]) -> str:
        label = labels.by_name.get(html.unescape(link[2]))
        return f"{link[1]}{escape(label)}</a>" if label else link[0]

    return MARKED_LINK.sub(named, page)


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


def error_text(message: str) -> str:
    """A service's message, which is English, in the page's language if the catalog has it.

    The catalog `errors` has messages as templates, such as `At most {limit} characters.`
    """
    language = str(flask_babel.get_locale() or languages.DEFAULT)
    if language == languages.DEFAULT or len(message) > MAX_ERROR_LENGTH:
        return message
    catalog = _catalog(language)
    if message in catalog.texts:
        return catalog.texts[message]
    fitting = catalog.matcher.Match(message)
    if not fitting:
        return message
    pattern, translation = catalog.templates[min(fitting)]
    # A message may hold another one.
    values = pattern.fullmatch(message).groupdict()
    return _fill_placeholders(
        translation, {name: catalog.texts.get(v, v) for name, v in values.items()}
    )


def _fill_placeholders(template: str, values: Mapping[str, str]) -> str:
    return PLACEHOLDER.sub(lambda found: values.get(found[1], found[0]), template)


@dataclass(frozen=True)
class _Catalog:
    texts: Mapping[str, str]
    templates: Sequence[tuple[Any, str]]
    """Patterns and translations, those with the most text of their own first."""
    matcher: Any
    """Finds the templates that a message fits in one pass."""


@lru_cache
def _catalog(language: str) -> _Catalog:
    catalog = languages.catalog(language, "errors")
    translated = [message for message in catalog if message.id and message.string]
    texts = {str(message.id): str(message.string) for message in translated}
    templates = [text for text in texts if PLACEHOLDER.search(text)]
    by_length = sorted(templates, key=lambda text: len(PLACEHOLDER.sub("", text)), reverse=True)
    matcher, compiled = re2.Set.FullMatchSet(), []
    for text in by_length:
        pattern = "".join(_pattern(text))
        matcher.Add(pattern)
        compiled.append((re2.compile(pattern), texts[text]))
    matcher.Compile()
    return _Catalog(texts, compiled, matcher)


def _pattern(template: str) -> Iterator[str]:
    for n, part in enumerate(PLACEHOLDER.split(template)):
        yield f"(?P<{part}>(?s:.)+?)" if n % 2 else re2.escape(part)


def row_count(text: str, most: int) -> int:
    """The number of rows that a form says to have (ADR 59), at most `most`; none for nonsense."""
    return min(int(text), most) if re.fullmatch(r"[0-9]{1,3}", text, re.ASCII) else 0


def move_row(rows: list[Any], index: int, way: str) -> None:
    """Move a row `up` or `down` by one; the first and the last one stay, and so do all others."""
    other = index + ROW_STEPS[way]
    if 0 <= index < len(rows) and 0 <= other < len(rows):
        rows[index], rows[other] = rows[other], rows[index]


def form_id() -> str:
    """The signed id that the form carries: the submitted one, else a new one."""
    return request.form.get(FORM_ID) or crypto.sign(new_id(), FORM_ID_SALT)


def derive_id(body: object) -> str:
    """The id of the row that the submitted form creates from `body`."""
    try:
        signed_id = str(crypto.unsign(request.form.get(FORM_ID, ""), FORM_ID_SALT))
    except BadSignature:
        signed_id = new_id()
    content = signed_id.encode() + orjson.dumps(body, option=orjson.OPT_SORT_KEYS)
    digest = hashlib.sha256(content).hexdigest()
    return signed_id[:NODE_START] + digest[: len(signed_id) - NODE_START]


@contextmanager
def ignore_already_created(load: Callable[[], object]) -> Iterator[None]:
    """Suppress the Conflict of a row that was created before, such as by a double click.

    `load` returns that row; it raises NotFound, or returns None, if there is none.
    """
    try:
        yield
    except Conflict as error:
        try:
            row = load()
        except NotFound:
            raise error from None
        if row is None:
            raise


@contextmanager
def ignore_already_deleted(account_id: str | None, table_name: str, id: str) -> Iterator[None]:
    """Suppress NotFound for a row that was deleted before, such as by a double click."""
    try:
        yield
    except NotFound:
        if not recent.is_deleted(account_id, table_name, id.lower()):
            raise
