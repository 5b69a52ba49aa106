"""The data of records in the form of steps: an input per field, or JSON.

Inputs stand for the JSON only where they lose nothing of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import orjson

from app.auth.principal import Principal
from app.collections import access, definitions
from app.collections.definitions import Definition
from app.collections.fields import Field
from app.collections.schema import FIELD_NAME
from app.console.automation import step_form, workflow_form
from app.console.automation.step_form import DATA, RECORD_OPERATIONS, Input, Row, StepList
from app.errors import problem
from app.rules import Type
from app.types import JSONObject
from app.web.languages import gettext
from app.workflows.language import templates

SWITCH = re.compile(r"(json|fields)\.([a-z0-9.]{1,100})")
Fields = Mapping[str, Field]


@dataclass
class FieldInput(Input):
    """A field of the record that a step writes."""

    field: Field | None = None
    """None if the collection has no such field, or the caller may not write it."""

    @property
    def editor(self) -> str | None:
        """None: the text may be a template."""
        return None

    @property
    def title(self) -> str:
        """The field's name."""
        return self.label

    @property
    def note(self) -> str:
        """The field's type, with the target of a reference."""
        if self.field is None:
            return ""
        target = self.field.collection
        return f"{self.field.type}: {target}" if target else self.field.type

    @property
    def is_long(self) -> bool:
        """Whether the value may have several lines."""
        if "\n" in self.text:  # an input of one line would drop the rest
            return True
        return self.field is None or self.field.is_long or not _is_simple(self.field)

    @property
    def options(self) -> Sequence[str]:
        """None: a template is possible everywhere."""
        return ()

    @property
    def suggestions(self) -> Sequence[str]:
        """The values that are no templates, if there are only some."""
        if self.field is None or self.is_long:
            return ()
        return list(self.field.choices)

    @property
    def is_target(self) -> bool:
        """Whether it names another step."""
        return False


@dataclass(frozen=True)
class Switch:
    """A pressed button that shows the data of a row as JSON or by field."""

    shown_as: str
    path: str


def parse_switch(do: str) -> Switch | None:
    """The pressed button that switches how data is shown; None if it is another one."""
    match = SWITCH.fullmatch(do)
    return Switch(match[1], match[2]) if match else None


def show_fields(steps: StepList, by: Principal, switch: Switch | None = None) -> None:
    """Show the data of records by field where possible, and where a switch asks for it."""
    rows = [row for one in steps.walk() for row in one.rows if row.writes_record]
    collections = {one.name.lower(): one for one in definitions.get_all()} if rows else {}
    for row in rows:
        shown_as = switch.shown_as if switch and switch.path == row.path else ""
        _switch(row, _writable(row, collections, by), shown_as)
    steps.numbered()


def to_data(row: Row, place: str) -> tuple[JSONObject, list[JSONObject]]:
    """The data that a step's fields describe, and their problems."""
    values, problems = JSONObject(), list[JSONObject]()
    for one in row.fields:
        if one.text and isinstance(one, FieldInput):
            values[one.label], message = _value(one.field, one.text)
            if message:
                problems.append(problem(f"{place}.{one.label}", "invalid_type", message))
    return values, problems


def _switch(row: Row, fields: Fields | None, shown_as: str) -> None:
    row.is_new = row.is_new or bool(shown_as)
    if row.entries is not None and shown_as == "json":
        data = Input(DATA, _as_json(row.entries, fields or {}), True)
        row.inputs.insert(len(row.inputs) - (row.inputs[-1].label == "next"), data)
        row.as_json, row.entries = True, None
    elif row.entries is not None:
        row.fields = _inputs(row, fields or {}, row.entries)
    elif shown_as == "fields" or not row.as_json:
        row.as_json = False
        _show_fields(row, fields, is_requested=shown_as == "fields")


def _show_fields(row: Row, fields: Fields | None, *, is_requested: bool) -> None:
    data = next(one for one in row.inputs if one.label == DATA)
    entries = _entries(data.text, fields) if fields is not None else None
    if fields is not None and entries is not None:
        row.inputs.remove(data)
        row.entries, row.fields = entries, _inputs(row, fields, entries)
    elif is_requested and fields is None:
        collection = next(one for one in row.inputs if one.label == "collection")
        collection.errors.append(gettext("Choose a collection that you may write to."))
    elif is_requested:
        data.errors.append(gettext("This data can only be edited as JSON."))


def _writable(row: Row, collections: Mapping[str, Definition], by: Principal) -> Fields | None:
    """The fields that the caller may write; None if the collection is closed or unknown."""
    definition = collections.get(row.text("collection").lower())
    found = access.if_open(by, definition, RECORD_OPERATIONS[row.kind]) if definition else None
    if definition is None or found is None:
        return None
    return {name: one for name, one in definition.fields.items() if name in found.writable}


def _inputs(row: Row, fields: Fields, entries: Mapping[str, str]) -> list[Input]:
    is_new = row.kind == "create_record"
    inputs: list[Input] = [
        FieldInput(
            name, entries.get(name, ""), is_new and one.required and not one.has_default, field=one
        )
        for name, one in fields.items()
    ]
    others = {name: text for name, text in entries.items() if text and name not in fields}
    return [*inputs, *(FieldInput(name, text, False) for name, text in others.items())]


def _entries(text: str, fields: Fields) -> dict[str, str] | None:
    """The texts of inputs for JSON; None if they would be read as another value."""
    value, problems = workflow_form.parse_json(text or "{}", DATA, dict, of_objects=False)
    if problems or text.startswith("{{"):
        return None
    texts = {name: _text(item) for name, item in value.items()}
    for name, item in value.items():
        shown = FieldInput(name, texts[name], False, field=fields.get(name))
        if not FIELD_NAME.fullmatch(name) or not _is_faithful(shown, item):
            return None
    return texts


def _is_faithful(shown: FieldInput, value: object) -> bool:
    text = shown.text
    if not text or "\r" in text or text != step_form.cleaned(text):  # browsers send \r as \n
        return False
    found, message = _value(shown.field, text)
    return message is None and orjson.dumps(found) == orjson.dumps(value)


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    is_nested = isinstance(value, dict | list)
    return workflow_form.pretty(value) if is_nested else orjson.dumps(value).decode()


def _as_json(entries: Mapping[str, str], fields: Fields) -> str:
    values = {name: _value(fields.get(name), text)[0] for name, text in entries.items() if text}
    return workflow_form.pretty(values)


def _value(field: Field | None, text: str) -> tuple[object, str | None]:
    """The value that a text stands for, and what is wrong with it."""
    if field is not None and field.json_schema.get("type") == "string":
        return text, None
    value, problems = (text, []) if text.startswith("{{") else _parsed(text)
    if field is None or templates.has_template(text):
        return value, None
    if field.rule_type is Type.NUMBER and not _is_number(value):
        return value, gettext("Enter a number or a template.")
    if field.rule_type is Type.BOOLEAN and not (value is None or isinstance(value, bool)):
        return value, gettext("Enter true, false or a template.")
    return value, gettext("Enter JSON or a template.") if problems else None


def _parsed(text: str) -> tuple[object, list[JSONObject]]:
    value, problems = workflow_form.parse_json(text, DATA, object, of_objects=False)
    return (text if problems else value), problems


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _is_simple(field: Field) -> bool:
    """Whether its values are short texts, numbers or booleans."""
    return field.json_schema.get("type") in ("string", "number", "boolean")
