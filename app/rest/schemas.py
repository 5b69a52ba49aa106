"""The parent of all schemas, and those that many operations share: messages and errors."""

from __future__ import annotations

import marshmallow as ma

TEXT = {"type": "string"}


class Schema(ma.Schema):
    """The parent of every schema: refuses properties that it does not know."""

    class Meta:
        """Fields in the order of their declaration; nothing unknown."""

        unknown = ma.RAISE

    body_may_be_absent = False
    names_numbers = False  # whether who checks its values says itself which number is out of range


class Message(Schema):
    """An answer that is a sentence."""

    message = ma.fields.String(required=True)


class ValidationDetail(Schema):
    """One place of a request that does not fit the documented shape."""

    loc = ma.fields.List(
        ma.fields.Raw(metadata={"type": ["string", "integer"]}),
        required=True,
        metadata={"description": "Where: body, query, path or header first, then the names."},
    )
    msg = ma.fields.String(required=True)
    type = ma.fields.String(required=True)


class Problem(Schema):
    """One value that breaks a domain rule."""

    field = ma.fields.String(allow_none=True)
    message = ma.fields.String(required=True)
    code = ma.fields.String(required=True)
    position = ma.fields.Integer()
    index = ma.fields.Integer(
        metadata={"description": "In a batch: the place of the record, from 0."}
    )
    line = ma.fields.Integer(
        metadata={"description": "In an import: the line of the file, from 1."}
    )


class Error(Schema):
    """Every error: a stable code and a sentence; 422 adds `detail`, 400 may add `details`."""

    error = ma.fields.String(required=True)
    message = ma.fields.String(required=True)
    detail = ma.fields.List(ma.fields.Nested(ValidationDetail))
    details = ma.fields.List(ma.fields.Nested(Problem))
    count = ma.fields.Integer(
        metadata={"description": "Of an import, and where not all problems are listed: how many."}
    )
    field = ma.fields.String()
    id = ma.fields.String(
        metadata={
            "description": "Of what was `already_done` under an Idempotency-Key: what was made."
        }
    )
