"""The base schema, and the shared schemas of messages and errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Self, TypeVar

import marshmallow as ma

from app.web.fields import doc

TEXT = {"type": "string"}
BYTES = {"type": "string", "format": "binary"}


class Schema(ma.Schema):
    """The base of every schema: refuses unknown properties."""

    class Meta:
        """Refuse unknown properties."""

        unknown = ma.RAISE

    example: Mapping[str, object]
    requires: tuple[str, ...] = ()  # inherited properties, such as those of a PATCH in a POST
    body_may_be_absent = False
    names_fields = False  # whether other query parameters are fields of a collection
    checks_repeated = False  # whether the view itself refuses repeated query parameters
    names_numbers = False  # whether its validation reports numbers out of range by field
    takes_files = False  # whether the view also reads multipart bodies

    def on_bind_field(self, field_name: str, field_obj: ma.fields.Field[Any]) -> None:
        field_obj.required = field_obj.required or field_name in self.requires

    def __deepcopy__(self, memo: object) -> Self:
        """Return the schema itself: flask-smorest copies what it knows of a view at each decorator,
        which cost each process 5 MiB.
        """
        return self


SchemaClass = TypeVar("SchemaClass", bound=type[Schema])


def example(**values: object) -> Callable[[SchemaClass], SchemaClass]:
    """Give a schema examples of its properties, where those of `app.web.examples` do not do."""

    def declare(schema: SchemaClass) -> SchemaClass:
        schema.example = values
        return schema

    return declare


class View(Schema):
    """The base of responses: they have all of their properties but those in `optional`."""

    optional: tuple[str, ...] = ()

    def on_bind_field(self, field_name: str, field_obj: ma.fields.Field[Any]) -> None:
        field_obj.required = field_name not in self.optional


class Message(View):
    """A response that is one sentence."""

    message = ma.fields.String()


class ValidationDetail(View):
    """A part of a request that does not match the documented schema."""

    loc = ma.fields.List(
        ma.fields.Raw(metadata={"type": ["string", "integer"]}),
        **doc("The location: body, query, path or header, then the names."),
    )
    msg = ma.fields.String()
    type = ma.fields.String()


class Problem(View):
    """A value that breaks a validation rule."""

    optional: tuple[str, ...] = ("field", "position", "index", "line", "count")

    field = ma.fields.String(allow_none=True)
    message = ma.fields.String()
    code = ma.fields.String()
    position = ma.fields.Integer()
    index = ma.fields.Integer(**doc("In a batch: the index of the record, from 0."))
    line = ma.fields.Integer(**doc("In an import: the line of the file, from 1."))
    count = ma.fields.Integer(
        **doc("In a change of a collection: the records that break the rule.")
    )


class ErrorBody(View):
    """An error: a stable code and a message; 422 adds `detail`, 400 may add `details`."""

    optional = ("detail", "details", "count", "field", "oldest", "explain_id", "id")

    error = ma.fields.String()
    message = ma.fields.String()
    detail = ma.fields.List(ma.fields.Nested(ValidationDetail))
    details = ma.fields.List(ma.fields.Nested(Problem))
    count = ma.fields.Integer(
        **doc("The number of problems, in an import or if not all are listed.")
    )
    field = ma.fields.String()
    oldest = ma.fields.Integer(**doc("With `feed_expired`: the oldest change that is kept."))
    explain_id = ma.fields.String(
        **doc(
            "With `rule_denied`: by it a superadmin finds out what decided"
            " (`GET /rules/denials/{explain_id}`)."
        )
    )
    id = ma.fields.String(
        **doc("With `already_done` (Idempotency-Key): the id of the created object.")
    )
