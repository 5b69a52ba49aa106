"""Schemas of what directories send; unknown attributes are ignored (RFC 7644, section 3.3)."""

from __future__ import annotations

import re
from typing import Any

import marshmallow as ma

from app.sso.scim.errors import invalid_value
from app.sso.scim.patch import OPERATIONS, Operation
from app.types import JSONMapping, JSONObject
from app.web import fields

MAX_NAME, MAX_ADDRESS, MAX_EXTERNAL_ID = 200, 254, 255
MAX_EMAILS, MAX_OPERATIONS, MAX_TARGETS = 20, 100, 1000
MAX_PARAMETER, MAX_OFFSET, MAX_COUNT = 4000, 10**9, 100
INTEGER = re.compile(r"[+-]?[0-9]{1,12}")


class _Schema(ma.Schema):
    class Meta:
        unknown = ma.EXCLUDE


class Flag(fields.StrictBoolean):
    """true or false, also as a text, which is how Entra ID writes it."""

    def _deserialize(self, value: object, *args: Any, **options: Any) -> bool:
        if isinstance(value, str):
            value = {"true": True, "false": False}.get(value.lower())
        return super()._deserialize(value, *args, **options)


class NameBody(_Schema):
    formatted = fields.Text(longest=MAX_NAME, allow_none=True)
    givenName = fields.Text(longest=MAX_NAME, allow_none=True)
    familyName = fields.Text(longest=MAX_NAME, allow_none=True)


class EmailBody(_Schema):
    value = fields.Text(longest=MAX_ADDRESS, allow_none=True)
    type = fields.Text(longest=50, allow_none=True)
    primary = Flag(allow_none=True)


class UserBody(_Schema):
    user_name = fields.Text(shortest=1, longest=MAX_ADDRESS, required=True, data_key="userName")
    external_id = fields.Text(longest=MAX_EXTERNAL_ID, allow_none=True, data_key="externalId")
    display_name = fields.Text(longest=MAX_NAME, allow_none=True, data_key="displayName")
    name = ma.fields.Nested(NameBody, allow_none=True)
    active = Flag(allow_none=True)
    emails = ma.fields.List(
        ma.fields.Nested(EmailBody), allow_none=True, validate=ma.validate.Length(max=MAX_EMAILS)
    )


class MemberBody(_Schema):
    value = fields.Text(shortest=1, longest=100, required=True)


class GroupBody(_Schema):
    display_name = fields.Text(shortest=1, longest=MAX_NAME, required=True, data_key="displayName")
    external_id = fields.Text(longest=MAX_EXTERNAL_ID, allow_none=True, data_key="externalId")
    members = ma.fields.List(ma.fields.Nested(MemberBody), allow_none=True)


class OperationBody(_Schema):
    op = ma.fields.String(required=True)
    path = fields.Text(longest=MAX_PARAMETER, allow_none=True)
    value = ma.fields.Raw(allow_none=True)


class PatchBody(_Schema):
    operations = ma.fields.List(
        ma.fields.Nested(OperationBody),
        required=True,
        validate=ma.validate.Length(1, MAX_OPERATIONS),
    )


class ListArgs(_Schema):
    """The query of a list or of one resource; other parameters are ignored."""

    filter = fields.Text(longest=MAX_PARAMETER)
    attributes = fields.Text(longest=MAX_PARAMETER, load_default="")
    excluded_attributes = fields.Text(
        longest=MAX_PARAMETER, load_default="", data_key="excludedAttributes"
    )
    start_index = fields.Text(longest=20, load_default="1", data_key="startIndex")
    count = fields.Text(longest=20, load_default=str(MAX_COUNT))

    @ma.post_load
    def bound(self, args: JSONObject, **options: object) -> JSONObject:
        """Bring the numbers within their bounds (RFC 7644, section 3.4.2.4)."""
        start = min(max(_integer(args["start_index"], "startIndex"), 1), MAX_OFFSET)
        count = min(max(_integer(args["count"], "count"), 0), MAX_COUNT)
        return args | {"start_index": start, "count": count}


def _integer(text: str, name: str) -> int:
    if not INTEGER.fullmatch(text):
        raise ma.ValidationError("Not a valid integer.", name)
    return int(text)


def load(schema: ma.Schema, values: JSONMapping) -> JSONObject:
    """Validate the body of a directory's request. Raises BadRequest `invalidValue`."""
    try:
        loaded: JSONObject = schema.load(values)
    except ma.ValidationError as error:
        raise invalid_value(" ".join(_messages(_by_field(error.messages)))) from None
    return loaded


def search_args(body: JSONMapping) -> JSONObject:
    """The parameters of a search by POST, as those of a list. Raises BadRequest."""
    return load(ListArgs(), {name: _as_parameter(value) for name, value in body.items()})


def _as_parameter(value: object) -> object:
    if isinstance(value, list):
        return ",".join(str(item) for item in value)
    return str(value) if type(value) is int else value


def operations(body: JSONMapping) -> list[Operation]:
    """The operations of a PATCH, with lower-case names. Raises BadRequest."""
    lowered = {name.lower(): value for name, value in body.items()}
    loaded = load(PatchBody(), lowered)["operations"]
    if sum(len(one["value"]) for one in loaded if isinstance(one.get("value"), dict)) > MAX_TARGETS:
        raise invalid_value(f"The operations name more than {MAX_TARGETS:,} attributes.")
    wrong = [one["op"] for one in loaded if one["op"].lower() not in OPERATIONS]
    if wrong:
        raise invalid_value(f"There is no operation “{wrong[0][:50]}”.")
    return [Operation(one["op"].lower(), one.get("path"), one.get("value")) for one in loaded]


def _by_field(messages: Any) -> JSONMapping:
    return messages if isinstance(messages, dict) else {"body": messages}


def _messages(messages: JSONMapping, *path: str) -> list[str]:
    found = []
    for name, inner in messages.items():
        if isinstance(inner, dict):
            found += _messages(inner, *path, str(name))
        else:
            found.append(f"{'.'.join([*path, str(name)])}: {' '.join(map(str, inner))}")
    return found
