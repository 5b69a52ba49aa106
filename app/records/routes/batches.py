"""`/records/{collection}/batch`: many records in one request, all of them or none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import marshmallow as ma
from flask import Response

from app import config, web
from app.auth.guard import optimistic, principal
from app.errors import BadRequest
from app.records import batch, operations
from app.records.routes.records import EXAMPLE, RecordObject
from app.types import JSONObject
from app.web import fields
from app.web.access import anonymous
from app.web.app import get_header
from app.web.blueprint import Blueprint
from app.web.fields import doc
from app.web.schemas import Schema, View
from app.web.serialization import json_response

blueprint = Blueprint(
    "Record batches",
    __name__,
    url_prefix=web.PREFIX,
    description="Many records in one request: all of them or none, in one transaction.",
)
LINE = "019a9f00-0000-7000-8000-000000000002"


class BatchLength:
    """A validator of 1 to SERVICE_BATCH_MAX items, with the attributes of marshmallow's Length."""

    min, equal = 1, None

    @property
    def max(self) -> int:
        return config.current().batch_max

    def __call__(self, items: Sequence[object]) -> None:
        """Raise ValidationError for another length."""
        if not self.min <= len(items) <= self.max:
            raise ma.ValidationError(f"Must have {self.min} to {self.max} entries.")


class NewRecords(Schema):
    names_numbers = True

    records = ma.fields.List(
        ma.fields.Dict(), required=True, validate=BatchLength(), **doc("The fields of each record.")
    )


class ChangeOfRecord(Schema):
    id = fields.GivenId(required=True)
    data = ma.fields.Dict(required=True)


class ChangedRecords(Schema):
    names_numbers = True

    records = ma.fields.List(
        ma.fields.Nested(ChangeOfRecord), required=True, validate=BatchLength()
    )


class ChosenRecords(Schema):
    ids = ma.fields.List(fields.GivenId(), required=True, validate=BatchLength())


class BatchArgs(Schema):
    """Whether to update existing records."""

    mode = ma.fields.String(
        load_default="create",
        validate=ma.validate.OneOf(["create", "upsert"]),
        **doc("`upsert` updates existing records."),
    )
    on = fields.Text(**doc("With `upsert`: the unique field that identifies them."))

    @ma.validates_schema
    def check(self, args: JSONObject, **options: object) -> None:
        """Require `on` with upsert, and only then."""
        if ("on" in args) != (args["mode"] == "upsert"):
            raise ma.ValidationError("Required with mode=upsert, and only then.", "on")


class IdOrReference(fields.GivenId):
    """The id of a record, or a `$ref` that stands for it."""

    def _deserialize(self, value: object, *args: Any, **options: Any) -> Any:
        return value if isinstance(value, dict) else super()._deserialize(value, *args, **options)


class RecordOperation(Schema):
    """A change of one record."""

    method = fields.Choice(operations.OPERATIONS, required=True)
    collection = fields.Text(required=True, shortest=1)
    id = IdOrReference(metadata={"type": ["string", "object"], "example": EXAMPLE["id"]})
    body = ma.fields.Dict()
    as_ = ma.fields.String(
        data_key="as",
        attribute="as",
        validate=ma.validate.Regexp(operations.NAME),
        **doc("A name by which later operations refer to it."),
    )
    if_match = fields.Text(
        **doc("ETags of the record, one of which it has to have, as in the header `If-Match`.")
    )

    @ma.validates_schema
    def check(self, sent: JSONObject, **options: object) -> None:
        """Each method takes what its request would."""
        is_new, is_end = sent["method"] == "POST", sent["method"] == "DELETE"
        takes = {"id": not is_new, "body": not is_end}
        found = {
            name: ["Missing data for required field." if is_taken else "Unknown field."]
            for name, is_taken in takes.items()
            if (name in sent) != is_taken
        }
        if is_new and "if_match" in sent:
            found["if_match"] = ["Unknown field."]
        if is_end and "as" in sent:
            found["as"] = ["Nothing is left to refer to."]
        if found:
            raise ma.ValidationError(found)


class RecordOperations(Schema):
    names_numbers = True

    operations = ma.fields.List(
        ma.fields.Nested(RecordOperation), required=True, validate=BatchLength()
    )


class OperationResult(View):
    """The status that the operation would have had as a request, and its record."""

    status = ma.fields.Integer()
    body = ma.fields.Nested(RecordObject, allow_none=True)


class OperationResults(View):
    results = ma.fields.List(ma.fields.Nested(OperationResult))


class CreatedRecords(View):
    """The created and, with upsert, the updated records."""

    optional = ("updated",)

    created = ma.fields.List(ma.fields.Nested(RecordObject))
    updated = ma.fields.List(ma.fields.Nested(RecordObject))
    count = ma.fields.Integer()


class UpdatedRecords(View):
    updated = ma.fields.List(ma.fields.Nested(RecordObject))
    count = ma.fields.Integer()


class DeletedRecords(View):
    deleted = ma.fields.List(ma.fields.String())
    count = ma.fields.Integer()


@blueprint.before_request
def refuse_conditions() -> None:
    """Refuse conditions, which batches cannot honour."""
    for name in ("If-Match", "If-None-Match"):
        if get_header(name) is not None:
            raise BadRequest(f"{name} works only for requests that change one record.")


@blueprint.route("/records/<collection>/batch", methods=["POST"])
@blueprint.arguments(BatchArgs, location="query")
@blueprint.arguments(NewRecords, example={"records": [{"title": "Hello"}, {"title": "Bye"}]})
@blueprint.response(201, CreatedRecords, example={"created": [EXAMPLE], "count": 1})
@blueprint.alt_response(
    200,
    schema=CreatedRecords,
    example={"created": [], "updated": [EXAMPLE], "count": 1},
    description="With mode=upsert: all existed and were updated.",
)
@blueprint.fails(405, 409, 413, 428)
@optimistic
@anonymous(operator="records")
def create_records(args: JSONObject, body: JSONObject, collection: str) -> Response:
    """Create many records.

    Returns the first 100 problems with the `index` of their record, and the `count` if there are
    more. With `mode=upsert` and `on`, a record of the account with the same value in this unique
    field is updated instead, by the update rule and its fields; the response then has `created` and
    `updated`, and is a 200 if nothing was created. A record that the caller may neither view nor
    update is not matched: its value is taken.
    """
    if args["mode"] == "create":
        created = batch.create(collection, body["records"], by=principal())
        return json_response({"created": created, "count": len(created)}, 201)
    created, updated = batch.upsert(collection, body["records"], args["on"], by=principal())
    count = len(created) + len(updated)
    answer = {"created": created, "updated": updated, "count": count}
    return json_response(answer, 201 if created else 200)


@blueprint.route("/records/<collection>/batch", methods=["PATCH"])
@blueprint.arguments(
    ChangedRecords, example={"records": [{"id": EXAMPLE["id"], "data": {"title": "Hello again"}}]}
)
@blueprint.response(200, UpdatedRecords, example={"updated": [EXAMPLE], "count": 1})
@blueprint.fails(405, 409, 413, 428)
@optimistic
@anonymous(operator="records")
def update_records(body: JSONObject, collection: str) -> Response:
    """Change fields of many records.

    Only the fields in each record's `data` change. Returns the first 100 problems with the `index`
    of their record, and the `count` if there are more.
    """
    updated = batch.update(collection, body["records"], by=principal())
    return json_response({"updated": updated, "count": len(updated)})


@blueprint.route("/records/<collection>/batch", methods=["DELETE"])
@blueprint.arguments(ChosenRecords, example={"ids": [EXAMPLE["id"]]})
@blueprint.response(200, DeletedRecords, example={"deleted": [EXAMPLE["id"]], "count": 1})
@blueprint.fails(405, 409, 413, 428)
@optimistic
@anonymous(operator="records")
def delete_records(body: JSONObject, collection: str) -> Response:
    """Delete many records.

    `on_delete` applies as for a single record; references among the deleted ones do not count.
    """
    deleted = batch.delete(collection, body["ids"], by=principal())
    return json_response({"deleted": deleted, "count": len(deleted)})


@blueprint.route("/batch", methods=["POST"])
@blueprint.arguments(
    RecordOperations,
    example={  # without a `$ref`, which tools of OpenAPI would follow here
        "operations": [
            {"method": "POST", "collection": "orders", "body": {"title": "Hello"}, "as": "order"},
            {"method": "POST", "collection": "lines", "body": {"title": "Hello"}},
        ]
    },
)
@blueprint.response(
    200,
    OperationResults,
    example={
        "results": [
            {"status": 201, "body": EXAMPLE},
            {"status": 201, "body": {**EXAMPLE, "id": LINE}},
        ]
    },
)
@blueprint.fails(405, 409, 412, 413, 428)
@optimistic
@anonymous(operator="records")
def run_operations(body: JSONObject) -> Response:
    """Change records of several collections.

    Up to `SERVICE_BATCH_MAX` operations (1,000), in order, all of them or none. Each is what the
    request of its method would be, under the same rules and rights: POST creates a record, PATCH
    and PUT change the one with this `id`, DELETE deletes it. An operation can be named (`as`), and
    `{"$ref": "order.id"}` in the `id` or anywhere in the `body` of a later one stands for a value
    of its record, which the caller has to see unmasked, and which is neither a list nor an object.

    `results` has the status and the record of each operation, null for a DELETE. If one fails,
    nothing is stored, and the error is that of its request; `details` name the place
    (`operations[3].body.title`) and the `index` of the operation. Operations after one with
    problems are checked, too.
    """
    results = operations.run(body["operations"], by=principal())
    return json_response({"results": [result._asdict() for result in results]})
