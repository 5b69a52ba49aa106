"""The fields of a collection as a form: a row of inputs per field, and some blank ones."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from flask import request

from app.collections.fields import InvalidValue, NumberField
from app.collections.schema import LONGEST_SCHEMA
from app.console.shell.forms import Form
from app.errors import AppError, InvalidValues, Malformed, problem
from app.rest import json_input

BLANK_ROWS = 3
TEXTS = ("name", "type", "default", "collection", "on_delete", "mask_type", "expression")
FLAGS = ("required", "unique", "pii")
# The options of a field by the kind of input: counts, numbers, texts, a list, boxes.
COUNTS, NUMBERS, WORDS, SWITCHES = (
    ("min_length", "max_length"),
    ("min", "max"),
    ("pattern", "mask"),
    ("integer", "index"),
)
OPTIONS = (*COUNTS, *NUMBERS, *WORDS, *SWITCHES, "choices")
INPUTS = (*TEXTS, "return_type", *FLAGS, *OPTIONS)
# What cannot change once the field is there.
FIXED = ("name", "type", "collection", "return_type")
UNTOUCHED = ("type", "on_delete", "mask_type", "return_type")  # selects, which always have a value
# Beside which input a problem is told; all others are told beside the name.
PLACES = {
    "type_invalid": "type",
    "type_change_not_allowed": "type",
    "reference_collection_required": "collection",
    "on_delete_invalid": "on_delete",
    "expression_invalid": "expression",
    "return_type_invalid": "return_type",
    "mask_type_invalid": "mask_type",
    "mask_type_requires_pii": "mask_type",
}


@dataclass
class SchemaForm(Form):
    """A form of fields; `present` are those that the collection has already, in order."""

    present: Sequence[Mapping[str, Any]] = ()
    rows: int = 0
    unread: list[dict[str, Any]] = field(default_factory=list)
    """What is wrong with texts that are no values, which the specs are without."""

    def specs(self) -> list[dict[str, Any]]:
        """The fields that the form declares, as far as it can be read."""
        self.unread = []
        return [self._spec(n, self.unread) for n in self.filled()]

    @contextmanager
    def telling_unread(self) -> Iterator[None]:
        """Around what refuses the specs: what is unread is told with it. Raises InvalidValues."""
        try:
            yield
        except InvalidValues as error:
            raise InvalidValues([*self.unread, *error.details]) from error
        if self.unread:
            raise InvalidValues(self.unread)

    def options(self) -> dict[str, bool]:
        """The options of the collection that the form sets."""
        return {"require_signature": bool(self["require_signature"])}

    def filled(self) -> list[int]:
        """The rows in which something stands; those of present fields always count."""
        return [n for n in range(self.rows) if n < len(self.present) or self._is_filled(n)]

    def is_present(self, n: int) -> bool:
        """Whether a row is of a field that the collection has already."""
        return n < len(self.present)

    def at(self, n: int, key: str) -> str:
        """The value of one input of a row."""
        return self[f"{key}_{n}"]

    def add_row(self) -> None:
        """One more blank row, while the schema has room."""
        self.rows = min(self.rows + 1, LONGEST_SCHEMA)

    def place_of(self, one: Mapping[str, Any]) -> str | None:
        """The input that a problem of a field belongs to."""
        name, code = one["field"], one["code"]
        if name in self.values:
            return str(name)
        rows = [n for n in self.filled() if self.at(n, "name") == (name or "")]
        if not rows:
            return None
        n = rows[-1] if code == "name_duplicate" else rows[0]
        key = PLACES.get(code, "name")
        return f"{'default' if one['message'].startswith('The default') else key}_{n}"

    def refused(self, error: AppError) -> SchemaForm:
        """Take in what an error says, each problem beside the input that it is about."""
        details = error.extra.get("details")
        if details:
            moved = [{**one, "field": self.place_of(one) or one["field"]} for one in details]
            error.extra["details"] = [
                one if one["field"] in self.values else _told_with_name(one) for one in moved
            ]
        super().refused(error)
        return self

    def _is_filled(self, n: int) -> bool:
        return any(self.at(n, key) for key in INPUTS if key not in UNTOUCHED)

    def _spec(self, n: int, found: list[dict[str, Any]]) -> dict[str, Any]:
        spec: dict[str, Any] = {"name": self.at(n, "name"), "type": self.at(n, "type")}
        if self.is_present(n):
            spec = {key: self.present[n][key] for key in FIXED}
        kind = spec["type"]
        spec |= {key: bool(self.at(n, key)) for key in FLAGS}
        spec["options"] = dict(self._options(n, spec, found))
        spec["default"] = self._default(n, kind, found)
        if kind == "reference":
            spec.setdefault("collection", self.at(n, "collection") or None)
            spec["on_delete"] = self.at(n, "on_delete") or None
        if kind == "computed":
            spec.setdefault("return_type", self.at(n, "return_type") or None)
            spec["expression"] = self.at(n, "expression") or None
        if spec["pii"]:
            spec["mask_type"] = self.at(n, "mask_type") or None
        return spec

    def _options(
        self, n: int, spec: Mapping[str, Any], found: list[dict[str, Any]]
    ) -> Iterator[tuple[str, Any]]:
        for key in _offered(spec["type"], custom=spec["pii"] and self.at(n, "mask_type")):
            text, stored = self.at(n, key), self._stored(n).get("options", {}).get(key)
            if stored is not None and text.strip() == _shown(key, stored).strip():
                yield key, stored
            elif key in SWITCHES and text:
                yield key, True
            elif key == "choices" and text:
                kept = set(stored or ())  # blanks that a choice has stay
                lines = (one if one in kept else one.strip() for one in text.split("\n"))
                yield key, [line for line in lines if line]
            elif key in WORDS and text:
                yield key, text
            elif text and key in (*COUNTS, *NUMBERS):
                try:
                    yield key, NumberField(key).from_text(text)
                except InvalidValue as error:
                    found.append(problem(f"{key}_{n}", error.code, str(error)))

    def _stored(self, n: int) -> Mapping[str, Any]:
        return self.present[n] if self.is_present(n) else {}

    def _default(self, n: int, kind: str, found: list[dict[str, Any]]) -> Any:
        text, stored = self.at(n, "default"), self._stored(n).get("default")
        if text == _shown("default", stored).strip():
            return stored  # an empty text, too, which the form cannot tell from none
        try:
            return default_of(kind, text) if text else None
        except (InvalidValue, Malformed):
            message = f"Not a value for a field of type {kind[:40]}."
            found.append(problem(f"default_{n}", "invalid_type", message))
        return None


def _offered(kind: str, *, custom: Any) -> Iterator[str]:
    yield from {
        "text": ("min_length", "max_length", "pattern", "choices"),
        "number": ("min", "max", "integer"),
    }.get(kind, ())
    if kind not in ("json", "computed"):
        yield "index"
    if custom == "custom":
        yield "mask"


def _told_with_name(one: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**one, "message": f"{one['field']}: {one['message']}"} if one["field"] else one


def default_of(kind: str, text: str) -> Any:
    """The JSON value that a default's text stands for. Raises InvalidValue or Malformed."""
    if kind == "number":
        return NumberField("default").from_text(text)
    if kind == "boolean":
        if text not in ("true", "false"):
            raise InvalidValue("invalid_type", "Must be true or false.")
        return text == "true"
    return json_input.loads(text.encode()) if kind == "json" else text


def blank() -> SchemaForm:
    """The form for a collection that is to be made."""
    return SchemaForm({"collection_name": ""}, rows=BLANK_ROWS)


def of_schema(
    schema: Sequence[Mapping[str, Any]], version: int, options: Mapping[str, Any]
) -> SchemaForm:
    """The form that stands for the fields of a collection."""
    form = SchemaForm({"version": str(version)}, present=schema, rows=len(schema) + 1)
    form.values["require_signature"] = "true" if options.get("require_signature") else ""
    for n, spec in enumerate(schema):
        for key in INPUTS:
            value = (spec.get("options") or {}).get(key) if key in OPTIONS else spec.get(key)
            form.values[f"{key}_{n}"] = _shown(key, value)
    return form


def _shown(key: str, value: Any) -> str:
    if value is None or (value is False and key != "default"):
        return ""
    if key == "choices":
        return "\n".join(value)
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else str(value)


def sent(present: Sequence[Mapping[str, Any]] = ()) -> SchemaForm:
    """The form as it was sent."""
    text = request.form.get("rows", "")
    sent_rows = int(text) if text.isascii() and text.isdigit() and len(text) < 4 else 0
    rows = min(max(sent_rows, len(present)), LONGEST_SCHEMA)
    once = ("collection_name", "version", "planned", "require_signature")
    values = {key: _text(key) for key in once}
    values |= {f"{key}_{n}": _text(f"{key}_{n}") for n in range(rows) for key in INPUTS}
    for n, spec in enumerate(present[:rows]):
        values |= {f"{key}_{n}": _shown(key, spec[key]) for key in FIXED}
    return SchemaForm(values, present=present, rows=rows)


def _text(name: str) -> str:
    text = request.form.get(name, "").replace("\0", "").replace("\r\n", "\n")
    return text if name.startswith("choices_") and text.strip() else text.strip()
