"""Marshmallow fields with bounds: strings, integers, booleans and timestamps."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

import marshmallow as ma

from app import clock
from app.web.app import UuidPath

EMAIL = {"format": "email"}
URI = {"format": "uri"}
# Metadata of a parameter that the service, not the schema, requires (400).
REQUIRED_BY_SERVICE = "required_by_service"


def doc(text: str, **more: object) -> dict[str, Any]:
    """Return the option of a field that describes it to API callers: `**doc("In bytes.")`."""
    return {"metadata": {"description": text, **more}}


def _text_problem(value: str) -> None:
    if "\0" in value:
        raise ma.ValidationError("Must not contain the NUL character.")


class Text(ma.fields.String):
    """A string of bounded length."""

    def __init__(self, *, shortest: int = 0, longest: int = 1000, **options: Any) -> None:
        length = ma.validate.Length(min=shortest or None, max=longest)
        super().__init__(validate=[length, _text_problem], **options)


class Choice(ma.fields.String):
    """One of a closed set of strings; loading validates it."""

    def __init__(self, choices: Iterable[str], **options: Any) -> None:
        super().__init__(validate=ma.validate.OneOf(tuple(choices)), **options)


class DocumentedChoice(Text):
    """A string that is documented as one of a closed set; the service validates it (400)."""

    def __init__(
        self,
        choices: Iterable[str],
        *,
        metadata: Mapping[str, object] | None = None,
        **options: Any,
    ) -> None:
        null = [None] if options.get("allow_none") else []
        super().__init__(metadata={**(metadata or {}), "enum": [*choices, *null]}, **options)


class Id(ma.fields.String):
    """The id of a row, in responses: a UUID."""


class GivenId(Text):
    """The id of a row, in requests: a UUID in any case (RFC 9562, section 4)."""

    def _deserialize(self, *args: Any, **options: Any) -> Any:
        text = super()._deserialize(*args, **options)
        return text.lower() if UuidPath.accepts(text) else text


class Integer(ma.fields.Integer):
    """An integer within bounds; a query may send it as text."""

    def __init__(self, low: int, high: int, **options: Any) -> None:
        super().__init__(strict=True, validate=ma.validate.Range(low, high), **options)

    def _deserialize(self, value: object, *args: object, **options: object) -> Any:
        if isinstance(value, str) and re.fullmatch(r"[+-]?[0-9]{1,19}", value):
            value = int(value)
        if type(value) is not int:
            raise self.make_error("invalid", input=value)
        return super()._deserialize(value, *args, **options)


class StrictBoolean(ma.fields.Boolean):
    """true or false, but not 1 or 0."""

    def _deserialize(self, value: object, *args: object, **options: object) -> bool:
        if not isinstance(value, bool):
            raise self.make_error("invalid", input=value)
        return value


class Timestamp(ma.fields.Field[datetime]):
    """A timestamp in responses: RFC 3339 in UTC."""

    def _serialize(self, value: Any, *args: object, **options: object) -> object:
        return clock.iso(value) if value is not None else None


class DateTime(ma.fields.Field[datetime]):
    """A timestamp in requests: ISO 8601, in UTC unless it has an offset."""

    def _deserialize(self, value: Any, *args: object, **options: object) -> datetime:
        if isinstance(value, str):
            with suppress(ValueError):
                return clock.parse(value)
        raise ma.ValidationError("Must be an ISO 8601 date and time.")


class Alternatives(ma.fields.Field[Any]):
    """A value of one of several shapes, some of them schemas, which the description then has."""

    schemas: tuple[type[ma.Schema], ...] = ()


def describe_alternatives(
    converter: Any, field: ma.fields.Field[Any], **options: object
) -> dict[str, object]:
    """Add the schemas of alternatives to the description, to which their metadata refers."""
    for schema in field.schemas if isinstance(field, Alternatives) else ():
        converter.resolve_nested_schema(schema)
    return {}


def describe_sizes(
    converter: object, field: ma.fields.Field[Any], ret: dict[str, object], **options: object
) -> dict[str, object]:
    """Describe the most entries of an object, which apispec takes for the length of a text."""
    if isinstance(field, ma.fields.Dict) and "maxLength" in ret:
        ret["maxProperties"] = ret.pop("maxLength")
    return {}


def required_by_service(
    converter: object, field: ma.fields.Field[Any], **options: object
) -> dict[str, bool]:
    """Return the description of a parameter that the service requires."""
    return {"required": True} if field.metadata.get(REQUIRED_BY_SERVICE) else {}
