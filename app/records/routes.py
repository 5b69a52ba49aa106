"""`/records/{collection}`: create, read, list, change and delete records (spec 4.2)."""

from __future__ import annotations

from typing import Any

import marshmallow as ma
from flask import Response, request

from app import rest
from app.auth.guard import optimistic, principal
from app.errors import BadRequest
from app.records import service as records
from app.rest import Access, allow, page_of, respond

blueprint = rest.Blueprint(
    "Records",
    __name__,
    url_prefix=f"{rest.PREFIX}/records",
    description="The records of a collection, in the caller's account.",
)

EXAMPLE = {
    "id": "019a9f00-0000-7000-8000-000000000001",
    "account_id": "019a9f00-0000-7000-8000-00000000000a",
    "created_at": "2026-11-20T12:00:00.123456Z",
    "updated_at": "2026-11-20T12:00:00.123456Z",
    "created_by": "019a9f00-0000-7000-8000-00000000000b",
    "updated_by": "019a9f00-0000-7000-8000-00000000000b",
    "title": "Hello",
}


class Record(rest.Schema):
    """A record: the system's fields, then those of the collection's schema."""

    class Meta:
        """The schema of the collection decides, not this one."""

        unknown = ma.INCLUDE

    id = ma.fields.String()
    account_id = ma.fields.String()
    created_at = rest.Timestamp()
    updated_at = rest.Timestamp()
    created_by = ma.fields.String(allow_none=True)
    updated_by = ma.fields.String(allow_none=True)


class RecordBody(rest.Schema):
    """The fields of the collection's schema."""

    class Meta:
        """The collection decides what is known; every field is checked against it."""

        unknown = ma.INCLUDE


class RecordPage(rest.page_schema(Record)):  # type: ignore[misc]
    """A page of records."""


class RecordArgs(rest.Schema):
    """What of one record to return."""

    fields_ = rest.Text(
        data_key="fields",
        attribute="fields",
        metadata={"description": "Comma-separated names; `id` always stays."},
    )


class RecordListArgs(rest.PageArgs):
    """Paging and order. Every other parameter is `<field>=<value>`, repeated for OR."""

    class Meta:
        """Other parameters are fields of the collection."""

        unknown = ma.EXCLUDE

    default_limit = 30

    sort = rest.Text(
        metadata={"description": "Fields with `-` (descending) or `+`; default `-created_at`."}
    )
    fields_ = rest.Text(
        data_key="fields",
        attribute="fields",
        metadata={"description": "Comma-separated names; `id` always stays."},
    )
    filter = rest.Text(
        longest=2**30,
        metadata={
            "description": "An expression of the rule language over fields that the caller sees,"
            ' such as `views > 10 && title ~ "a%"`.'
        },
    )
    include_total = ma.fields.Boolean(
        load_default=True, metadata={"description": "false skips the count: `total` is null."}
    )
    include_count = ma.fields.Boolean(
        load_default=True, metadata={"description": "Another name for include_total."}
    )


@blueprint.before_request
def refuse_conditions() -> None:
    """Refuse what would not be honoured: whoever sends If-Match relies on it."""
    if "If-Match" in request.headers:
        raise BadRequest("If-Match is not supported yet.")


@blueprint.route("/<collection>", methods=["GET"])
@blueprint.arguments(RecordListArgs, location="query", unknown=ma.EXCLUDE)
@blueprint.response(200, RecordPage, example=page_of([EXAMPLE], 1, {"skip": 0, "limit": 30}))
@blueprint.fails(400, 403)
@optimistic
@allow(Access.ANONYMOUS)
def list_records(args: dict[str, Any], collection: str) -> Response:
    """List records.

    Sorted and filtered by the fields that the caller may see. `?field=value` keeps the records
    whose field has that value; given several times, any of the values; `filter` takes any
    condition, in which dotted names lead to records that the caller may view. All combine with
    AND. Unknown names are a 400, and so are fields that the caller may not see or sees masked.
    """
    items, total = records.page(
        collection,
        request.args.to_dict(flat=False),
        skip=args["skip"],
        limit=args["limit"],
        count=args["include_total"] and args["include_count"],
        by=principal(),
    )
    return respond(page_of(items, total, args))


@blueprint.route("/<collection>", methods=["POST"])
@blueprint.arguments(RecordBody, example={"title": "Hello"})
@blueprint.response(201, Record, example=EXAMPLE)
@blueprint.fails(400, 403, 409)
@optimistic
@allow(Access.ANONYMOUS)
def create_record(body: dict[str, Any], collection: str) -> Response:
    """Create a record.

    The answer is the record as the caller may view it; whoever may create but not view gets the
    system's fields only.
    """
    return respond(records.create(collection, body, by=principal()), 201)


@blueprint.route("/<collection>/<record_id>", methods=["GET"])
@blueprint.arguments(RecordArgs, location="query")
@blueprint.response(200, Record, example=EXAMPLE)
@blueprint.fails(400, 403)
@optimistic
@allow(Access.ANONYMOUS)
def get_record(args: dict[str, Any], collection: str, record_id: str) -> Response:
    """Get a record."""
    return respond(records.get(collection, record_id, args.get("fields"), by=principal()))


@blueprint.route("/<collection>/<record_id>", methods=["PUT"])
@blueprint.arguments(RecordBody, example={"title": "Hello again"})
@blueprint.response(200, Record, example=EXAMPLE)
@blueprint.fails(400, 403, 409)
@optimistic
@allow(Access.ANONYMOUS)
def replace_record(body: dict[str, Any], collection: str, record_id: str) -> Response:
    """Replace a record.

    A field that is absent takes its default, else null; fields that the caller may not write stay.
    """
    return respond(records.replace(collection, record_id, body, by=principal()))


@blueprint.route("/<collection>/<record_id>", methods=["PATCH"])
@blueprint.arguments(RecordBody, example={"title": "Hello again"})
@blueprint.response(200, Record, example=EXAMPLE)
@blueprint.fails(400, 403, 409)
@optimistic
@allow(Access.ANONYMOUS)
def patch_record(body: dict[str, Any], collection: str, record_id: str) -> Response:
    """Change fields of a record.

    Only the fields in the body change.
    """
    return respond(records.patch(collection, record_id, body, by=principal()))


@blueprint.route("/<collection>/<record_id>", methods=["DELETE"])
@blueprint.response(204)
@blueprint.fails(403, 409)
@optimistic
@allow(Access.ANONYMOUS)
def delete_record(collection: str, record_id: str) -> Response:
    """Delete a record.

    Records that refer to it by a field with `on_delete: cascade` go with it, references with
    `set_null` are emptied, all in the same transaction, within the account and whatever the rules
    of those collections; one with `restrict` on a record that stays is a 409.
    """
    records.delete(collection, record_id, by=principal())
    return Response(status=204)
