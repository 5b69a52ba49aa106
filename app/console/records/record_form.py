"""A record as a form: a widget for the type of each field, and the body that comes of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import orjson
from flask import request

from app import clock
from app.collections.access import Access
from app.collections.fields import Field, InvalidValue, TextField
from app.console.records.references import Found
from app.console.shell.forms import Form
from app.errors import AppError, Malformed, problem
from app.rest import json_input

SHORT = 200
WIDGETS = {
    "number": "number",
    "boolean": "flag",
    "datetime": "moment",
    "date": "date",
    "email": "email",
    "url": "url",
    "json": "json",
    "reference": "reference",
}
AS_TYPED = ("text", "area", "choice")  # blanks around them belong to them
FLAGS = {"true": "yes", "false": "no"}
MASKED = "You see this masked. Left as it is, it stays as it is."
UNSEEN = "You may write this but not see it. Left empty, it stays as it is."


@dataclass(frozen=True)
class Widget:
    """How a field is entered, or only shown."""

    field: Field
    kind: str
    note: str | None = None

    @property
    def name(self) -> str:
        """The name of the input."""
        return f"f_{self.field.name}"


@dataclass
class RecordForm(Form):
    """What is typed for each field, what stood there, and what the picker of references found."""

    widgets: list[Widget] = field(default_factory=list)
    before: dict[str, str] = field(default_factory=dict)
    found: dict[str, Found | None] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    """What the records that references lead to are called, by input."""

    unread: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What is wrong with texts that are no values of their fields' types, by field."""

    def body(self, *, new: bool) -> dict[str, Any]:
        """The values that were changed, as the API takes them; of what is none, the text."""
        body: dict[str, Any] = {}
        for widget in self.widgets:
            name = widget.field.name
            try:
                body |= self._value(widget, new)
            except InvalidValue as error:
                # Refused by the service, too, which tells along with it what else is wrong.
                body[name] = self[widget.name]
                self.unread[name] = problem(name, error.code, str(error))
        return body

    def telling_stored(self) -> RecordForm:
        """The form with what is stored beside each input that says something else."""
        self.widgets = [self._telling_stored(one) for one in self.widgets]
        return self

    def refused(self, error: AppError) -> RecordForm:
        """Take in what an error says; fields have inputs of other names."""
        details = error.extra.get("details") or ()
        details = [self.unread.get(one["field"] or "", one) for one in details]
        error.extra["details"] = [{**one, "field": self._input(one["field"])} for one in details]
        if not details and error.extra.get("field"):
            error.extra["field"] = self._input(error.extra["field"])
        super().refused(error)
        return self

    def _input(self, name: str | None) -> str | None:
        return f"f_{name}" if f"f_{name}" in self.values else name

    def _telling_stored(self, widget: Widget) -> Widget:
        stored = self.before[widget.name]
        if widget.note == UNSEEN or _is_same(widget.kind, self._text(widget), stored):
            return widget
        words = FLAGS.get(stored, stored) if widget.kind == "flag" else stored
        return replace(widget, note=f"Stored now: {words or 'nothing'}")

    def _text(self, widget: Widget) -> str:
        text = self[widget.name]
        return text if widget.kind in AS_TYPED else text.strip()

    def _value(self, widget: Widget, new: bool) -> dict[str, Any]:
        one, text = widget.field, self._text(widget)
        if _is_same(widget.kind, text, "" if new else self.before.get(widget.name, "")):
            # Emptied on purpose, where a default was offered.
            return {one.name: None} if new and one.default is not None else {}
        return {one.name: None if text == "" else _typed(one, widget.kind, text)}


def widgets(access: Access, values: Mapping[str, Any] | None) -> list[Widget]:
    """The widgets of the fields that the caller may write."""
    return list(_widgets(access, values))


def _widgets(access: Access, values: Mapping[str, Any] | None) -> Iterator[Widget]:
    for name, one in access.definition.fields.items():
        if name not in access.writable:
            continue
        if values is not None and name not in values:
            yield Widget(one, _kind(one, ""), UNSEEN)
        elif values is not None and name in access.masked and values[name] is not None:
            yield Widget(one, "text", MASKED)
        else:
            yield Widget(one, _kind(one, shown(one, (values or {}).get(name))))


def _kind(one: Field, text: str) -> str:
    if not isinstance(one, TextField):
        return WIDGETS[one.type]
    if "choices" in one.options:
        return "choice"
    return (
        "text" if one.options.get("max_length", SHORT + 1) <= SHORT and "\n" not in text else "area"
    )


def of_record(access: Access, values: Mapping[str, Any] | None) -> RecordForm:
    """The form of a record; one that the caller cannot see is of empty texts."""
    values = values or {}
    form = RecordForm(widgets=widgets(access, values))
    for widget in form.widgets:
        masked = widget.note == MASKED
        value = values.get(widget.field.name)
        form.before[widget.name] = str(value) if masked else shown(widget.field, value)
    form.values = dict(form.before)
    return form


def of_new(access: Access) -> RecordForm:
    """The form of a new record, with the defaults."""
    form = RecordForm(widgets=widgets(access, None))
    for widget in form.widgets:
        form.values[widget.name] = shown(widget.field, widget.field.default)
    return form


def take_sent(form: RecordForm) -> RecordForm:
    """The form with what was sent in it."""
    for name in [*form.values, *(_finder(one) for one in form.widgets)]:
        text = request.form.get(name, "")
        form.values[name] = text.replace("\0", "").replace("\r\n", "\n")
    return form


def _finder(widget: Widget) -> str:
    return widget.name.replace("f_", "find_", 1)


def shown(one: Field, value: Any) -> str:
    """A value as it stands in its widget."""
    if value is None:
        return ""
    if one.type == "json":
        text = orjson.dumps(value).decode() if isinstance(value, orjson.Fragment) else None
        loaded = json.loads(text) if text is not None else value
        return json.dumps(loaded, indent=2, ensure_ascii=False)
    if isinstance(value, bool):
        return str(value).lower()
    if one.type == "datetime":
        return str(value).removesuffix("Z").removesuffix(".000000")[:23]
    # Browsers make a line feed of a carriage return that stands alone, too.
    return str(value).replace("\r\n", "\n").replace("\r", "\n")


def _is_same(kind: str, text: str, before: str) -> bool:
    if kind != "moment" or not (text and before):
        return text == before
    try:  # browsers leave out seconds and digits that are zero
        return clock.parse(text) == clock.parse(before)
    except ValueError:
        return False


def _typed(one: Field, kind: str, text: str) -> Any:
    if one.type in ("number", "boolean"):
        return one.from_text(text)
    if one.type != "json":
        return text
    try:
        return json_input.loads(text.encode("utf-8", "replace"))
    except Malformed as error:
        message = error.extra["detail"][0]["msg"].replace("The body", "This")
        raise InvalidValue("invalid_json", message) from error
