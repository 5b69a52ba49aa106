"""Examples of the API description, derived from the fields of a schema."""

from __future__ import annotations

from typing import Any

import marshmallow as ma

from app.web import fields

UUID = "019a9f00-0000-7000-8000-00000000000a"
USER_ID = "019a9f00-0000-7000-8000-00000000000b"
TIME = "2026-11-20T12:00:00.123456Z"
BY_NAME = {
    **dict.fromkeys(
        ("closed_by", "created_by", "invited_by", "requested_by", "revoked_by"), USER_ID
    ),
    "account_id": UUID,
    **dict.fromkeys(("checksum", "previous_hash", "sha256"), "23" * 32),
    **dict.fromkeys(("actor_digest", "entry_digest", "values_digest"), "ab" * 32),
    "access_token": "eyJhbGciOi...",
    "account_code": "AA0001",
    "account_name": "Acme",
    "collection": "posts",
    "domain": "acme.example",
    "email": "alice@acme.example",
    "duration_ms": 87,
    "enabled": True,
    "expires_in": 3600,
    "expires_at": "2026-11-21T12:00:00.123456Z",
    "ip_address": "192.0.2.7",
    "is_active": True,
    "message": "Done.",
    "password": "Correct-horse-1",
    "new_password": "Correct-horse-2",
    "public_key": "45" * 32,
    "refresh_token": "eyJhbGciOi...",
    "signature": "67" * 64,
    "status_code": 200,
    "success": True,
    "token": "AA0001-...",
    "url": "https://client.example.com/atrium",
    "user_agent": "curl/8.5.0",
    "user_email": "alice@acme.example",
    "user_id": USER_ID,
    "user_name": "Alice",
    "valid": True,
}
BY_KIND: dict[str, Any] = {
    "array": [],
    "boolean": False,
    "date": "2026-11-20",
    "date-time": TIME,
    "email": "alice@acme.example",
    "integer": 1,
    "number": 1,
    "object": {},
    "string": "...",
    "uri": "https://client.example.com/atrium",
    "uuid": UUID,
}
BY_CLASS = {
    fields.Timestamp: "date-time",
    fields.DateTime: "date-time",
    fields.Id: "uuid",
    fields.GivenId: "uuid",
    ma.fields.Boolean: "boolean",
    ma.fields.Date: "date",
    ma.fields.Mapping: "object",
    ma.fields.Number: "integer",
}


def example_of(schema: ma.Schema) -> Any:
    """Return what a schema tells as its `example`, and examples of its other required fields."""
    given: dict[str, object] = {}
    for owner in reversed(type(schema).__mro__):
        given |= vars(owner).get("example", {})
    derived = {
        name: given[name] if name in given else _value(name, field)
        for name, field in ((field.data_key or key, field) for key, field in schema.fields.items())
        if name in given or field.required
    }
    return [derived] if schema.many else derived


def _value(name: str, field: ma.fields.Field[Any]) -> Any:
    if name in BY_NAME:
        return BY_NAME[name]
    kind = field.metadata.get("type", "")
    if field.allow_none or "null" in kind:
        return None
    if isinstance(field, ma.fields.List):
        return [_value("", field.inner)]
    if isinstance(field, ma.fields.Nested):
        inner = example_of(field.schema)
        return [inner] if field.many and not field.schema.many else inner
    for validator in field.validators:
        if isinstance(validator, ma.validate.OneOf):
            return next(iter(validator.choices))
        if isinstance(validator, ma.validate.Range) and isinstance(validator.min, int):
            return validator.min
    if "enum" in field.metadata:
        return field.metadata["enum"][0]
    for known, text in BY_CLASS.items():
        if isinstance(field, known) and not kind:
            kind = text
    return BY_KIND[field.metadata.get("format") or kind or "string"]
