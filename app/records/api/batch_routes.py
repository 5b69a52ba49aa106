"""`/records/{collection}/batch`: many records in one request, all of them or none."""

from __future__ import annotations

from collections.abc import Sequence

import marshmallow as ma
from flask import Response

from app import config, rest
from app.auth.guard import optimistic, principal
from app.errors import BadRequest
from app.records import batch
from app.records.api.routes import EXAMPLE, Record
from app.rest import fields
from app.rest.access import Access, allow
from app.rest.blueprint import Blueprint
from app.rest.current_request import get_header
from app.rest.responses import json_response
from app.rest.schemas import Schema
from app.types import JSONObject

blueprint = Blueprint(
    "Record batches",
    __name__,
    url_prefix=f"{rest.PREFIX}/records",
    description="Many records in one request: all of them or none, in one transaction.",
)


def _check_length(items: Sequence[object]) -> None:
    most = config.current().batch_max
    if not 1 <= len(items) <= most:
        raise ma.ValidationError(f"Must have 1 to {most} entries.")


class NewRecords(Schema):
    """Records to be made."""

    names_numbers = True

    records = ma.fields.List(
        ma.fields.Dict(),
        required=True,
        validate=_check_length,
        metadata={"description": "The fields of each record, as many as SERVICE_BATCH_MAX."},
    )


class ChangeOfRecord(Schema):
    """A record, and what of it is to change."""

    id = fields.Text(required=True)
    data = ma.fields.Dict(required=True)


class ChangedRecords(Schema):
    """Records to be changed."""

    names_numbers = True

    records = ma.fields.List(
        ma.fields.Nested(ChangeOfRecord), required=True, validate=_check_length
    )


class ChosenRecords(Schema):
    """Records to be deleted."""

    ids = ma.fields.List(fields.Text(), required=True, validate=_check_length)


class BatchArgs(Schema):
    """Whether records that are there already are updated."""

    mode = ma.fields.String(
        load_default="create",
        validate=ma.validate.OneOf(["create", "upsert"]),
        metadata={"description": "`upsert` updates the records that are there already."},
    )
    on = fields.Text(metadata={"description": "With `upsert`: the unique field that tells which."})

    @ma.validates_schema
    def check(self, args: JSONObject, **options: object) -> None:
        """The field goes with upsert, and upsert with the field."""
        if ("on" in args) != (args["mode"] == "upsert"):
            raise ma.ValidationError("Goes with mode=upsert, and it with this.", "on")


class CreatedRecords(Schema):
    """What was created; of an upsert also what was updated."""

    created = ma.fields.List(ma.fields.Nested(Record), required=True)
    updated = ma.fields.List(ma.fields.Nested(Record))
    count = ma.fields.Integer(required=True)


class UpdatedRecords(Schema):
    """What was updated."""

    updated = ma.fields.List(ma.fields.Nested(Record), required=True)
    count = ma.fields.Integer(required=True)


class DeletedRecords(Schema):
    """The ids of what was deleted."""

    deleted = ma.fields.List(ma.fields.String(), required=True)
    count = ma.fields.Integer(required=True)


@blueprint.before_request
def refuse_conditions() -> None:
    """Refuse what cannot be honoured for many: whoever sends If-Match relies on it."""
    if get_header("If-Match") is not None:
        raise BadRequest("If-Match is for requests that change one record.")


@blueprint.route("/<collection>/batch", methods=["POST"])
@blueprint.arguments(BatchArgs, location="query")
@blueprint.arguments(NewRecords, example={"records": [{"title": "Hello"}, {"title": "Bye"}]})
@blueprint.response(201, CreatedRecords, example={"created": [EXAMPLE], "count": 1})
@blueprint.alt_response(
    200,
    schema=CreatedRecords,
    example={"created": [], "updated": [EXAMPLE], "count": 1},
    description="With mode=upsert: all were there, and are updated.",
)
@blueprint.fails(400, 403, 409, 413, 428)
@optimistic
@allow(Access.ANONYMOUS)
def create_records(args: JSONObject, body: JSONObject, collection: str) -> Response:
    """Create many records.

    The first hundred problems are told, each with the `index` of its record, and of more than these
    the `count`. With `mode=upsert` and `on`, a record of the account with the same value in this
    unique field is updated instead, by the update rule and its fields; the answer then has
    `created` and `updated`, and is a 200 where nothing was created. A record that the caller may
    neither view nor update is not found so: its value is taken, as for whoever creates one.
    """
    if args["mode"] == "create":
        created = batch.create(collection, body["records"], by=principal())
        return json_response({"created": created, "count": len(created)}, 201)
    created, updated = batch.upsert(collection, body["records"], args["on"], by=principal())
    count = len(created) + len(updated)
    answer = {"created": created, "updated": updated, "count": count}
    return json_response(answer, 201 if created else 200)


@blueprint.route("/<collection>/batch", methods=["PATCH"])
@blueprint.arguments(
    ChangedRecords, example={"records": [{"id": EXAMPLE["id"], "data": {"title": "Hello again"}}]}
)
@blueprint.response(200, UpdatedRecords, example={"updated": [EXAMPLE], "count": 1})
@blueprint.fails(400, 403, 409, 413, 428)
@optimistic
@allow(Access.ANONYMOUS)
def update_records(body: JSONObject, collection: str) -> Response:
    """Change fields of many records.

    Of each record only the fields in its `data` change. The first hundred problems are told, each
    with the `index` of its record, and of more than these the `count`.
    """
    updated = batch.update(collection, body["records"], by=principal())
    return json_response({"updated": updated, "count": len(updated)})


@blueprint.route("/<collection>/batch", methods=["DELETE"])
@blueprint.arguments(ChosenRecords, example={"ids": [EXAMPLE["id"]]})
@blueprint.response(200, DeletedRecords, example={"deleted": [EXAMPLE["id"]], "count": 1})
@blueprint.fails(400, 403, 409, 413, 428)
@optimistic
@allow(Access.ANONYMOUS)
def delete_records(body: JSONObject, collection: str) -> Response:
    """Delete many records.

    What refers to them goes or stays as with one; references among them do not hold them.
    """
    deleted = batch.delete(collection, body["ids"], by=principal())
    return json_response({"deleted": deleted, "count": len(deleted)})
