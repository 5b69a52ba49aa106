"""The fields of a collection as a form: a row of inputs per field, and blank rows.

Rows have numbers, the present fields' first, which stay as rows move; `order` has them as shown.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from flask import request

from app.collections.definitions import default_expression
from app.collections.fields import (
    MULTIPLE,
    SYSTEM_FIELDS,
    TYPES,
    Field,
    InvalidValue,
    NumberField,
    kind_of,
)
from app.collections.models import Collection
from app.collections.schema import LONGEST_SCHEMA
from app.collections.trash import MAX_DAYS
from app.console.shell import forms, names
from app.console.shell.forms import Form, show_errors_in
from app.errors import AppError, Conflict, InvalidValues, problem
from app.types import JSONMapping, JSONObject
from app.web.languages import gettext, lazy_gettext

UNIQUE = "unique:"

BLANK_ROWS = 1
RIGHTS = ("readable_if", "writable_if")
DEFAULTS = ("default", "default_expression")
TEXTS = ("name", "type", *DEFAULTS, "collection", "on_delete", "mask_type", "expression", *RIGHTS)
FLAGS = ("required", "unique", "pii")
# The options of a field, by kind of input.
COUNTS, NUMBERS, WORDS, SWITCHES = (
    (
        *("min_length", "max_length", "max_bytes", "max_files", "max_items"),
        *("digits", "precision", "scale"),
    ),
    ("min", "max"),
    ("pattern", "mask", "prefix"),
    ("integer", "index", "search"),
)
OPTIONS = (*COUNTS, *NUMBERS, *WORDS, *SWITCHES, "choices", "mime_types")
INPUTS = (*TEXTS, "return_type", *FLAGS, "multiple", *OPTIONS, "remove", "rename")
# Properties that cannot change later.
IMMUTABLE = ("name", "type", "collection", "return_type")
SELECTS = ("type", "on_delete", "mask_type", "return_type")  # inputs that always have a value
AN_INDEX = re.compile(r"indexes\[([0-9]+)\]")
# The button that acts on a row of the editor: "up-3".
AN_ACT = re.compile(r"(up|down|clear)-([0-9]{1,3})", re.ASCII)
LABELS = {
    "name": lazy_gettext("name"),
    "type": lazy_gettext("type"),
    "default": lazy_gettext("default"),
    "default_expression": lazy_gettext("default by expression"),
    "required": lazy_gettext("required"),
    "unique": lazy_gettext("unique"),
    "pii": lazy_gettext("personal data"),
    "pattern": lazy_gettext("pattern"),
    "prefix": lazy_gettext("prefix"),
    "digits": lazy_gettext("digits"),
    "integer": lazy_gettext("whole numbers only"),
    "index": lazy_gettext("indexed"),
    "search": lazy_gettext("searchable"),
    "choices": lazy_gettext("choices"),
    "remove": lazy_gettext("remove"),
    "rename": lazy_gettext("new name"),
    "on_delete": lazy_gettext("when its target is deleted"),
    "mask_type": lazy_gettext("mask"),
    "mask": lazy_gettext("mask"),
    "return_type": lazy_gettext("result type"),
    "collection": lazy_gettext("refers to"),
    "expression": lazy_gettext("computed as"),
    "readable_if": lazy_gettext("read by"),
    "writable_if": lazy_gettext("written by"),
    "min_length": lazy_gettext("shortest"),
    "max_length": lazy_gettext("longest"),
    "max_bytes": lazy_gettext("size"),
    "max_files": lazy_gettext("number of files"),
    "max_items": lazy_gettext("number of entries"),
    "multiple": lazy_gettext("several"),
    "mime_types": lazy_gettext("types"),
    "precision": lazy_gettext("digits in all"),
    "scale": lazy_gettext("digits behind the point"),
    "min": lazy_gettext("minimum"),
    "max": lazy_gettext("maximum"),
    "require_signature": lazy_gettext("electronic signature"),
    "trash": lazy_gettext("days in the trash"),
}
MASK_NAMES = {
    "full": lazy_gettext("All of it"),
    "email": lazy_gettext("Email address"),
    "name": lazy_gettext("Name"),
    "phone": lazy_gettext("Phone number"),
    "ssn": lazy_gettext("Social security number"),
    "custom": lazy_gettext("Custom"),
}
ON_DELETE_NAMES = {
    "": lazy_gettext("The usual for its type"),
    "restrict": lazy_gettext("Refuse to delete it"),
    "cascade": lazy_gettext("Delete this record, too"),
    "set_null": lazy_gettext("Empty this field"),
}
OTHER_LABELS = {
    "collection_name": lazy_gettext("Name of the collection"),
    "indexes": lazy_gettext("Indexes"),
    "trash_days": lazy_gettext("Trash"),
}
# Problems whose message speaks of the API's properties.
MESSAGES = {
    "type_invalid": lazy_gettext("Choose a type."),
    "reference_collection_required": lazy_gettext(
        "Choose the collection that the field refers to."
    ),
    "return_type_invalid": lazy_gettext("Choose the type of the result."),
    "mask_type_requires_pii": lazy_gettext("Only personal data has a mask."),
}
# The input that shows a problem; the default is the name.
INPUT_BY_CODE = {
    "type_invalid": "type",
    "type_change_not_allowed": "type",
    "reference_collection_required": "collection",
    "on_delete_invalid": "on_delete",
    "expression_invalid": "expression",
    "default_invalid": "default_expression",
    "readable_if_invalid": "readable_if",
    "writable_if_invalid": "writable_if",
    "return_type_invalid": "return_type",
    "mask_type_invalid": "mask_type",
    "mask_type_requires_pii": "mask_type",
}


@dataclass
class SchemaForm(Form):
    """A form of fields; `existing` are those that the collection already has, in order."""

    existing: Sequence[JSONMapping] = ()
    rows: int = 0
    focus: str | None = None
    """The input that the page begins at."""
    unparsed: list[JSONObject] = field(default_factory=list)
    """Problems of texts that do not parse; the specs omit them."""

    def specs(self) -> list[JSONObject]:
        """The field specs that the form declares, as far as it can be parsed."""
        self.unparsed = []
        return [self._spec(n, self.unparsed) for n in self._kept()]

    def field_order(self) -> list[str]:
        """The new names of the fields, in the order of the form."""
        return [self.new_name(n) for n in self._kept()]

    def names(self) -> JSONObject:
        """The names that computed fields may use, as the editor completes them."""
        system = {name: {"type": one.like.type} for name, one in SYSTEM_FIELDS.items()}
        return system | {
            self.new_name(n): {"type": self.value(n, "type"), "choices": self._choices(n)}
            for n in self._kept()
            if self.new_name(n) and self.value(n, "type") != "computed"
        }

    def _choices(self, n: int) -> list[str]:
        return [line for line in self.value(n, "choices").split("\n") if line]

    def _kept(self) -> list[int]:
        filled = set(self.filled())
        return [n for n in self.order if n in filled and not self.is_removed(n)]

    @property
    def order(self) -> list[int]:
        """The rows as they are shown."""
        sent = [int(text) for text in self["order"].split(",") if re.fullmatch("[0-9]{1,3}", text)]
        return [n for n in dict.fromkeys([*sent, *range(self.rows)]) if n < self.rows]

    def act(self, name: str) -> bool:
        """Add, move or clear a row, as the pressed button says; False if it is another one."""
        if name == "add":
            n = self.next_row
            self.rows, self.focus = max(self.rows, n + 1), f"name_{n}"
            return True
        match = AN_ACT.fullmatch(name)
        if match is None:
            return False
        act, n = match[1], int(match[2])
        if act == "clear" and not self.exists(n):
            self.values |= {f"{key}_{n}": "" for key in INPUTS}
            self.focus = f"name_{n}"
        elif n in (order := self.order) and act != "clear":
            forms.move_row(order, order.index(n), act)
            self.values["order"] = ",".join(map(str, order))
        return True

    @property
    def movable(self) -> list[int]:
        """The rows that can be moved, as they are shown."""
        return [n for n in self.order if self.exists(n) or self.value(n, "name")]

    @property
    def next_row(self) -> int:
        """The row that “Add a field” opens: a spare one, else a new one up to the limit."""
        spare = (n for n in self.order if self.is_spare(n))
        return next(spare, min(self.rows, LONGEST_SCHEMA - 1))

    def is_spare(self, n: int) -> bool:
        """Whether a row is a blank one that is not shown until a field is added."""
        is_blank = not self.exists(n) and not self._is_filled(n)
        return is_blank and bool(self.existing) and not self.is_open(n)

    def is_open(self, n: int) -> bool:
        """Whether a row shows its inputs: with faults, in use, or as the first blank one."""
        if self.faults(n) or self.focus == f"name_{n}":
            return True
        blank = [one for one in self.order if not self.exists(one) and not self._is_filled(one)]
        return not self.existing and n in blank[:1]

    def shows_limits(self, n: int) -> bool:
        """Whether a row shows its default and limits: with errors, or as typed for a new field."""
        names = [f"{key}_{n}" for key in (*DEFAULTS, *COUNTS, *NUMBERS, "pattern")]
        is_new = not self.exists(n)
        return any(name in self.errors or (is_new and self[name]) for name in names)

    def shows_rights(self, n: int) -> bool:
        """Whether a row shows the rights of its field: there are some, or with errors."""
        return any(self.value(n, key) or f"{key}_{n}" in self.errors for key in RIGHTS)

    def faults(self, n: int) -> list[str]:
        """The inputs of a row that have errors."""
        return [name for key in INPUTS if (name := f"{key}_{n}") in self.errors]

    def error_list(self) -> list[tuple[str, str]]:
        """The inputs with errors in the order of the page, each with its place and messages."""
        rows = [name for n in self.order for name in self.faults(n)]
        first, last = (["collection_name"], ["indexes", "trash_days"])
        known = [name for name in (*first, *rows, *last) if name in self.errors]
        return [(name, f"{self._place(name)}: {' '.join(self.errors[name])}") for name in known]

    def _place(self, name: str) -> str:
        if name in OTHER_LABELS:
            return OTHER_LABELS[name]
        key, _, number = name.rpartition("_")
        field = self.value(int(number), "name") or gettext("New field")
        return f"{field}, {LABELS[key]}"

    def removed(self) -> list[str]:
        """The existing fields to remove."""
        return [self.existing[n]["name"] for n in range(self.rows) if self.is_removed(n)]

    def is_removed(self, n: int) -> bool:
        """Whether the field of a row is to be removed."""
        return self.exists(n) and bool(self.value(n, "remove"))

    @contextmanager
    def including_unparsed(self) -> Iterator[None]:
        """Around what refuses the specs: what is unparsed is told with it. Raises InvalidValues."""
        try:
            yield
        except InvalidValues as error:
            raise InvalidValues([*self.unparsed, *error.details]) from error
        if self.unparsed:
            raise InvalidValues(self.unparsed)

    def options(self) -> JSONObject:
        """The options of the collection. Raises InvalidValues."""
        days, trash = self["trash_days"], None
        if days:
            if not (days.isascii() and days.isdigit() and 1 <= int(days) <= MAX_DAYS):
                message = f"Must be a whole number from 1 to {MAX_DAYS}."
                raise InvalidValues([problem("trash_days", "out_of_range", message)])
            trash = {"days": int(days)}
        return {"require_signature": bool(self["require_signature"]), "trash": trash}

    def indexes(self) -> list[JSONObject]:
        return parse_indexes(self["indexes"])

    def changed_indexes(self, stored: Sequence[JSONMapping]) -> list[JSONObject] | None:
        """The indexes that the form declares; None if they are the stored ones."""
        is_same = self["indexes"] == render_indexes(stored).replace("\r\n", "\n").strip()
        return None if is_same else self.indexes()

    def filled(self) -> list[int]:
        """The rows with any value; rows of existing fields always count."""
        return [n for n in range(self.rows) if n < len(self.existing) or self._is_filled(n)]

    def exists(self, n: int) -> bool:
        """Whether a row belongs to an existing field."""
        return n < len(self.existing)

    def value(self, n: int, key: str) -> str:
        """The value of one input of a row."""
        return self[f"{key}_{n}"]

    def is_list(self, n: int) -> bool:
        """Whether the field of a row is a list of references or users."""
        stored = self._stored(n)
        return bool(stored.get("multiple") if stored else self.value(n, "multiple"))

    def new_name(self, n: int) -> str:
        """The name that the field of a row gets."""
        return self.value(n, "rename") or self.value(n, "name")

    def renames(self) -> dict[str, str]:
        """The new name of each existing field that gets one."""
        rows = (n for n in range(len(self.existing)) if self.value(n, "rename"))
        return {self.value(n, "name"): self.value(n, "rename") for n in rows}

    def input_for(self, problem: JSONMapping) -> str | None:
        """The input that a field's problem belongs to."""
        name, code = problem["field"], problem["code"]
        if name in self.values:
            return str(name)
        rows = [n for n in self.filled() if self.new_name(n) == (name or "")]
        if not rows:
            return None
        n = rows[-1] if code == "name_duplicate" else rows[0]
        key = INPUT_BY_CODE.get(code, "rename" if self.value(n, "rename") else "name")
        if problem["message"].startswith("The default") and code != "default_invalid":
            key = "default"
        return f"{key}_{n}"

    def with_error(self, error: AppError) -> SchemaForm:
        """The form with each problem beside the input that it is about."""
        if isinstance(error, Conflict) and error.extra.get("field") == "name":
            error = Conflict(error.message, field="collection_name")
        details = error.extra.get("details")
        if details:
            placed = [self._placed(detail) for detail in details if not _is_of_order(detail)]
            error.extra["details"] = [
                detail if detail["field"] in self.values else _prefix_field(detail)
                for detail in placed
            ]
        super().with_error(error)
        self.focus = next((name for name, _ in self.error_list()), None)
        return self

    def _placed(self, detail: JSONMapping) -> JSONObject:
        detail = {**detail, "message": str(MESSAGES.get(detail["code"], detail["message"]))}
        if index := AN_INDEX.fullmatch(detail["field"] or ""):
            number, message = int(index[1]) + 1, detail["message"]
            message = gettext("Index %(number)s: %(message)s", number=number, message=message)
            return {**detail, "field": "indexes", "message": message}
        return {**detail, "field": self.input_for(detail) or detail["field"]}

    def _is_filled(self, n: int) -> bool:
        return any(self.value(n, key) for key in INPUTS if key not in SELECTS)

    def _spec(self, n: int, problems: list[JSONObject]) -> JSONObject:
        spec: JSONObject = {"name": self.value(n, "name"), "type": self.value(n, "type")}
        if self.exists(n):
            spec = {key: self.existing[n][key] for key in IMMUTABLE}
            if self.value(n, "rename"):
                spec |= {"name": self.value(n, "rename"), "rename_from": spec["name"]}
        kind = spec["type"]
        spec |= {key: bool(self.value(n, key)) for key in FLAGS}
        if kind in MULTIPLE:
            spec["multiple"] = self.is_list(n)
        spec["options"] = dict(self._options(n, spec, problems))
        spec["default"] = self._default(n, kind, problems)
        if kind == "reference":
            spec.setdefault("collection", self.value(n, "collection") or None)
        if kind in ("reference", "user"):
            spec["on_delete"] = self.value(n, "on_delete") or None
        if kind == "computed":
            spec.setdefault("return_type", self.value(n, "return_type") or None)
            spec["expression"] = self.value(n, "expression") or None
        spec |= {key: self.value(n, key) or None for key in RIGHTS}
        if spec["pii"]:
            spec["mask_type"] = self.value(n, "mask_type") or None
        return spec

    def _options(
        self, n: int, spec: JSONMapping, problems: list[JSONObject]
    ) -> Iterator[tuple[str, object]]:
        for key in _option_keys(spec, custom=spec["pii"] and self.value(n, "mask_type")):
            stored = self._stored(n).get("options", {}).get(key)
            if key not in OPTIONS:  # of an extension's type: the API sets it
                if stored is not None:
                    yield key, stored
                continue
            text = self.value(n, key)
            if stored is not None and text.strip() == _input_text(key, stored).strip():
                yield key, stored
            elif key in SWITCHES and text:
                yield key, True
            elif key == "choices" and text:
                stored_choices = set(stored or ())  # keep the blanks of stored choices
                lines = (
                    choice if choice in stored_choices else choice.strip()
                    for choice in text.split("\n")
                )
                yield key, [line for line in lines if line]
            elif key == "mime_types" and text:
                yield key, re.split(r"[\s,]+", text.strip(", "))
            elif text and (key in WORDS or (key in NUMBERS and spec["type"] == "decimal")):
                yield key, text
            elif text and key in (*COUNTS, *NUMBERS):
                try:
                    yield key, NumberField(key).from_text(text)
                except InvalidValue as error:
                    problems.append(problem(f"{key}_{n}", error.code, str(error)))

    def _stored(self, n: int) -> JSONMapping:
        return self.existing[n] if self.exists(n) else {}

    def _default(self, n: int, kind: str, problems: list[JSONObject]) -> object:
        if expression := self.value(n, "default_expression"):
            return {"expression": expression}
        text, stored = self.value(n, "default"), self._stored(n).get("default")
        if default_expression(self._stored(n)):
            stored = None
        if text == _input_text("default", stored).strip():
            return stored  # also an empty text, which looks like no default
        field = TYPES.get(kind, Field)("default")
        if not text or not field.takes_default:
            return text or None
        try:
            value = field.parse(text)
            if not isinstance(value, bool) or text == field.written(value):
                return value
        except InvalidValue:
            pass
        name = names.of_type(kind)[:40]
        message = gettext("Not a valid value for a field of type %(type)s.", type=name)
        problems.append(problem(f"default_{n}", "invalid_type", message))
        return None


def _option_keys(spec: JSONMapping, *, custom: object) -> Iterator[str]:
    yield from (kind_of(spec) or Field).known_options
    if custom == "custom":
        yield "mask"


def _is_of_order(detail: JSONMapping) -> bool:
    # The form's own order is of its own fields: those that it names have faults themselves.
    return bool(detail["field"] == "field_order")


def _prefix_field(detail: JSONMapping) -> JSONMapping:
    return (
        {**detail, "message": f"{detail['field']}: {detail['message']}"}
        if detail["field"]
        else detail
    )


def blank() -> SchemaForm:
    return SchemaForm({"collection_name": ""}, rows=BLANK_ROWS)


def from_collection(row: Collection) -> SchemaForm:
    """The form with a collection's fields and indexes."""
    values = {"version": str(row.version), "collection_name": row.name}
    form = SchemaForm(values, existing=row.schema, rows=len(row.schema) + 1)
    form.values["require_signature"] = "true" if row.options.get("require_signature") else ""
    trash = row.options.get("trash")
    form.values["trash_days"] = str(trash["days"]) if trash else ""
    form.values["indexes"] = render_indexes(row.indexes)
    for n, spec in enumerate(row.schema):
        for key in INPUTS:
            value = (spec.get("options") or {}).get(key) if key in OPTIONS else spec.get(key)
            form.values[f"{key}_{n}"] = _input_text(key, value)
        if expression := default_expression(spec):
            form.values |= {f"default_{n}": "", f"default_expression_{n}": expression}
    return form


def _input_text(key: str, value: Any) -> str:
    if value is None or (value is False and key != "default"):
        return ""
    if key == "mime_types":
        return ", ".join(value)
    if key == "choices":
        return "\n".join(value)
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else str(value)


def submitted(existing: Sequence[JSONMapping] = ()) -> SchemaForm:
    sent_rows = forms.row_count(request.form.get("rows", ""), LONGEST_SCHEMA)
    rows = min(max(sent_rows, len(existing)), LONGEST_SCHEMA)
    single = ("collection_name", "version", "planned", "require_signature", "indexes", "order")
    values = {key: _text(key) for key in (*single, "trash_days")}
    values["order"] = values["order"][: 4 * LONGEST_SCHEMA]
    values |= {f"{key}_{n}": _text(f"{key}_{n}") for n in range(rows) for key in INPUTS}
    for n, spec in enumerate(existing[:rows]):
        values |= {f"{key}_{n}": _input_text(key, spec[key]) for key in IMMUTABLE}
    return show_errors_in(SchemaForm(values, existing=existing, rows=rows))


def _text(name: str) -> str:
    text = request.form.get(name, "").replace("\0", "").replace("\r\n", "\n")
    return text if name.startswith("choices_") and text.strip() else text.strip()


def parse_indexes(text: str) -> list[JSONObject]:
    """The index definitions of lines; blank ones are ignored."""
    return [_parse_index(line.strip()) for line in text.splitlines() if line.strip()]


def render_indexes(specs: Sequence[JSONMapping]) -> str:
    return "\n".join(map(render_index, specs))


def render_index(spec: JSONMapping) -> str:
    fields = ", ".join(spec["fields"])
    return f"{UNIQUE} {fields}" if spec["unique"] else fields


def _parse_index(line: str) -> JSONObject:
    names = (name.strip() for name in line.removeprefix(UNIQUE).split(","))
    return {"fields": [name for name in names if name], "unique": line.startswith(UNIQUE)}
