"""`/records/{collection}`: create, read, list, change and delete records."""

from __future__ import annotations

import marshmallow as ma
from flask import Response

from app import web
from app.auth.guard import optimistic, principal
from app.errors import InvalidValues, problem
from app.files.routes.upload_parts import record_body
from app.records import service as records
from app.records import trash
from app.records.history import service
from app.records.read import file_links
from app.records.read.views import RecordView
from app.records.routes import stale_reads
from app.records.store import limit_size
from app.records.store.reads import ListQuery
from app.types import JSONObject
from app.web import fields, preconditions
from app.web.access import anonymous
from app.web.app import get_header, get_request
from app.web.blueprint import Blueprint
from app.web.fields import doc
from app.web.paging import Page, PageArgs, items_field, page_body
from app.web.parsing import MULTIPART
from app.web.preconditions import Preconditions
from app.web.schemas import Schema
from app.web.serialization import json_response

blueprint = Blueprint(
    "Records",
    __name__,
    url_prefix=f"{web.PREFIX}/records",
    description="The records of a collection, in the caller's account.",
)

LONGEST_CURSOR = 8000
OF_NOW = "Links lead to the files of now: leave out as_of."


def search_text() -> fields.Text:
    """The parameter `search`."""
    description = (
        "Words, in any case and with any accents, of the searchable fields that the caller sees:"
        ' `wor*` and the last word also begin words, `"a phrase"` has its words in a row, and'
        " `-word` is in none of the fields."
    )
    return fields.Text(longest=2**30, **doc(description))


EXAMPLE = {
    "id": "019a9f00-0000-7000-8000-000000000001",
    "account_id": "019a9f00-0000-7000-8000-00000000000a",
    "created_at": "2026-11-20T12:00:00.123456Z",
    "updated_at": "2026-11-20T12:00:00.123456Z",
    "created_by": "019a9f00-0000-7000-8000-00000000000b",
    "updated_by": "019a9f00-0000-7000-8000-00000000000b",
    "title": "Hello",
}


class RecordObject(Schema):
    """A record: system fields, then the fields of the collection's schema."""

    class Meta:
        """The schema of the collection decides, not this one."""

        unknown = ma.INCLUDE

    id = ma.fields.String()
    account_id = fields.Id()
    created_at = fields.Timestamp()
    updated_at = fields.Timestamp()
    created_by = ma.fields.String(allow_none=True)
    updated_by = ma.fields.String(allow_none=True)
    expand = ma.fields.Dict(**doc("If requested: the referenced and referring records by name."))
    highlights = ma.fields.Dict(
        data_key="_highlights",
        keys=ma.fields.String(),
        values=ma.fields.String(),
        **doc("If requested: by field, the part of its text that has what is searched, as HTML."),
    )
    lost = ma.fields.List(
        ma.fields.String(),
        data_key="_lost",
        **doc("After a restore from the trash: the references that lost a target that is gone."),
    )


class RecordBody(Schema):
    """The fields of the collection's schema."""

    class Meta:
        """The collection decides what is known; every field is checked against it."""

        unknown = ma.INCLUDE

    names_numbers = True
    takes_files = True


class RecordPage(Page):
    """A page of records; with a cursor, it has cursors instead of page numbers."""

    optional = (
        *("total", "skip", "page", "page_size", "total_pages"),
        *("next_cursor", "prev_cursor", "has_more"),
    )

    items = items_field(RecordObject)
    next_cursor = ma.fields.String(allow_none=True)
    prev_cursor = ma.fields.String(allow_none=True)
    has_more = ma.fields.Boolean(
        **doc("Whether records come after this page in the order of the list.")
    )


def expand_text() -> fields.Text:
    """The parameter `expand`."""
    description = (
        "Comma-separated references, dotted to follow further ones, at most three deep, such as"
        " `author,author.team`. Adds `expand` with what the caller may view of them. People, in"
        " `created_by`, `updated_by` and fields of type `user`, are `{id, name}`, null if they are"
        " gone, and the id for callers who may see no more. `comments_via_ticket` adds the newest"
        " 100 records of `comments` whose `ticket` refers to the record, as `{items, has_more}`."
    )
    return fields.Text(**doc(description))


def file_links_number() -> fields.Integer:
    """The parameter `file_links`."""
    description = (
        "Seconds, from 1 minute to 7 days: the `url` of files works so long without a credential,"
        " as a link of `POST /files/{id}/link` does, until `expires_at`. Not for anonymous callers."
    )
    return fields.Integer(file_links.SHORTEST, file_links.LONGEST, **doc(description))


class RecordArgs(Schema):
    expand = expand_text()
    file_links = file_links_number()

    fields_ = fields.Text(
        data_key="fields", attribute="fields", **doc("Comma-separated names; `id` always stays.")
    )
    as_of = fields.DateTime(**doc("The record as it was at this moment (UTC)."))


class DeletionArgs(Schema):
    permanently = ma.fields.Boolean(**doc("true passes by the trash, or deletes what is there."))


class RecordListArgs(PageArgs):
    """Paging and order. Every other parameter is `<field>=<value>`, repeated for OR."""

    class Meta:
        """Other parameters are fields of the collection."""

        unknown = ma.EXCLUDE

    names_fields = True
    default_limit = 30

    expand = expand_text()
    file_links = file_links_number()
    cursor = fields.Text(
        longest=LONGEST_CURSOR,
        **doc(
            "`next_cursor` of a page, empty for the first: the page after it. A"
            " cursor belongs to its list: same account, filter and sort."
        ),
    )
    cursor_before = fields.Text(
        longest=LONGEST_CURSOR,
        **doc("`prev_cursor` of a page, empty for the last: the page before."),
    )
    sort = fields.Text(
        **doc(
            "Fields with `-` (descending) or `+`; default `-created_at`. Dotted names follow"
            " references, such as `-customer.name`: null where the caller may not view the record."
        )
    )
    fields_ = fields.Text(
        data_key="fields", attribute="fields", **doc("Comma-separated names; `id` always stays.")
    )
    filter = fields.Text(
        longest=2**30,
        **doc(
            "An expression of the rule language over fields that the caller sees,"
            ' such as `views > 10 && title ~ "a%"`: at most 2,000 characters, 200 parts and 32'
            " levels. The whole address, encoded as it is sent, has at most 8,190 bytes: longer"
            " ones are a 414."
        ),
    )
    search = search_text()
    highlight = ma.fields.Boolean(
        **doc("Adds `_highlights`: where the fields have what is searched, as HTML with `<mark>`.")
    )
    include_total = ma.fields.Boolean(
        load_default=True, **doc("false skips the count: `total` is null.")
    )
    include_count = ma.fields.Boolean(load_default=True, **doc("Alias of include_total."))


WITH_FILES = {
    "content": {
        "multipart/form-data": {
            "schema": {
                "type": "object",
                "description": "Files under their field's name; other values as parts, or as JSON"
                " in `data`.",
                "properties": {"data": {"type": "string"}},
                "additionalProperties": True,
            },
            "example": {"data": '{"title": "Hello"}', "cover": "(the bytes of cover.png)"},
        }
    }
}
IF_MATCH = {
    "in": "header",
    "name": "If-Match",
    "schema": {"type": "string"},
    "description": "ETags of the record as the caller last saw it, or `*`; otherwise returns 412."
    ' The weak form (`W/"..."`), which compressing proxies use, is accepted.',
}
IF_NONE_MATCH = {
    "in": "header",
    "name": "If-None-Match",
    "schema": {"type": "string"},
    "description": "ETags of the caller's cached copies; returns 304 if one is current.",
}

TRASH = {
    "in": "query",
    "name": "trash",
    "schema": {"type": "boolean"},
    "description": "The records in the trash, where the collection has one (`options.trash`): those"
    " that the list rule and the delete rule admit, with `deleted_at` and `deleted_by`, which"
    " filter and sort, too.",
}
UNLESS_MATCH = {
    "in": "header",
    "name": "If-None-Match",
    "schema": {"type": "string"},
    "description": "ETags, or `*` for any: returns 412 if the record has one of them.",
}


def get_preconditions() -> Preconditions:
    """What the headers of the request ask of the version that a change finds."""
    return Preconditions(get_header("If-Match"), get_header("If-None-Match"))


def tagged(record: RecordView, status: int = 200) -> Response:
    """Return a response with a record and the ETag of the caller's view."""
    etag = record.etag
    response = json_response(record, status)
    response.headers.add("ETag", etag)
    return response


@blueprint.route("/<collection>", methods=["GET"])
@blueprint.arguments(RecordListArgs, location="query", unknown=ma.EXCLUDE)
@blueprint.response(200, RecordPage, example=page_body([EXAMPLE], 1, {"skip": 0, "limit": 30}))
@blueprint.fails(413)
@blueprint.doc(parameters=[stale_reads.HEADER, TRASH])
@optimistic
@stale_reads.may_be_stale
@anonymous(operator="records")
def list_records(args: JSONObject, collection: str) -> Response:
    """List records.

    Newest first by default; records that are equal in `sort` are ordered by id. Sort and filter by
    fields that the caller sees unmasked. `?field=value` selects records with that value; repeat it
    for any of several values. `filter` takes any condition; dotted names follow references to
    records that the caller may view. All filters combine with AND. Unknown, empty, hidden and
    masked names are a 400.

    `search` orders records by how well they fit, unless `sort` is given. Of more than 10,000 the
    newest come first, and `total` is null.

    With `cursor` or `cursor_before` the response has `items`, `next_cursor`, `prev_cursor`,
    `has_more` and `limit`. Every page costs the same, and concurrent changes cause neither
    duplicates nor gaps.

    Responses over 32 MiB are a 413: request fewer records with `limit`, or fewer fields with
    `fields`.
    """
    query = ListQuery(
        parameters=get_request().args.to_dict(flat=False),
        skip=args["skip"],
        limit=args["limit"],
        count=args["include_total"] and args["include_count"],
        file_links=args.get("file_links"),
    )
    if "cursor" in args or "cursor_before" in args:
        answer = records.walk(collection, query, by=principal())
        return json_response({**answer, "items": limit_size(answer["items"])})
    items, total = records.page(collection, query, by=principal())
    return json_response(page_body(limit_size(items), total, args))


@blueprint.route("/<collection>", methods=["POST"])
@blueprint.doc(requestBody=WITH_FILES)
@blueprint.arguments(RecordBody, example={"title": "Hello"})
@blueprint.response(201, RecordObject, example=EXAMPLE)
@blueprint.fails(405, 409, 428)
@optimistic
@anonymous(operator="records")
def create_record(body: JSONObject, collection: str) -> Response:
    """Create a record.

    Returns the record as the caller may view it, or only the system fields without view access. All
    problems are reported together, except duplicates of unique values: those are checked only if
    everything else is valid and the rule allows the record.
    """
    if body is MULTIPART:
        body = record_body(collection, "create")
    return tagged(records.create(collection, body, by=principal()), 201)


@blueprint.route("/<collection>/<record_id>", methods=["GET"])
@blueprint.doc(parameters=[IF_NONE_MATCH])
@blueprint.arguments(RecordArgs, location="query")
@blueprint.response(200, RecordObject, example=EXAMPLE)
@blueprint.alt_response(304, description="The copy named by If-None-Match is current.")
@blueprint.fails(412, 413)
@optimistic
@anonymous(operator="records")
def get_record(args: JSONObject, collection: str, record_id: str) -> Response:
    """Get a record.

    `as_of` returns a former state from the audit log, also of deleted records. The view rule must
    allow both the current (or last) state and the former one. For a moment before changes that
    retention removed, the answer is 404 `history_truncated`.
    """
    if "as_of" in args:
        if "file_links" in args:
            raise InvalidValues([problem("file_links", "invalid_option", OF_NOW)])
        return json_response(service.get(collection, record_id, args, by=principal()))
    expanded, seconds = args.get("expand"), args.get("file_links")
    record = records.get(
        collection,
        record_id,
        args.get("fields"),
        expanded=expanded,
        link_seconds=seconds,
        by=principal(),
    )
    preconditions.check(get_header("If-Match"), record.etag)
    not_modified = preconditions.matches(get_header("If-None-Match"), record.etag)
    # Expanded records, links and time-dependent fields are not part of the ETag.
    if not_modified and record.is_settled and not expanded and not seconds:
        return Response(status=304, headers={"ETag": record.etag})
    return tagged(record)


@blueprint.route("/<collection>/<record_id>", methods=["PUT"])
@blueprint.doc(parameters=[IF_MATCH, UNLESS_MATCH], requestBody=WITH_FILES)
@blueprint.arguments(RecordBody, example={"title": "Hello again"})
@blueprint.response(200, RecordObject, example=EXAMPLE)
@blueprint.fails(405, 409, 412, 428)
@optimistic
@anonymous(operator="records")
def replace_record(body: JSONObject, collection: str, record_id: str) -> Response:
    """Replace a record.

    Absent fields get their default or null; fields that the caller may not write keep their values.
    An unchanged reference may refer to a record that the caller cannot view.
    """
    conditions = get_preconditions()
    if body is MULTIPART:
        body = record_body(collection, "update")
    changed = records.replace(collection, record_id, body, conditions=conditions, by=principal())
    return tagged(changed)


@blueprint.route("/<collection>/<record_id>", methods=["PATCH"])
@blueprint.doc(parameters=[IF_MATCH, UNLESS_MATCH], requestBody=WITH_FILES)
@blueprint.arguments(RecordBody, example={"title": "Hello again"})
@blueprint.response(200, RecordObject, example=EXAMPLE)
@blueprint.fails(405, 409, 412, 428)
@optimistic
@anonymous(operator="records")
def patch_record(body: JSONObject, collection: str, record_id: str) -> Response:
    """Change fields of a record.

    Only the fields in the body change. An unchanged reference may refer to a record that the caller
    cannot view; a new one may not.

    `{"$add": [...], "$remove": [...]}` in the place of a list takes entries out of the present one,
    then adds those that it does not have.
    """
    conditions = get_preconditions()
    if body is MULTIPART:
        body = record_body(collection, "update")
    changed = records.patch(collection, record_id, body, conditions=conditions, by=principal())
    return tagged(changed)


@blueprint.route("/<collection>/<record_id>", methods=["DELETE"])
@blueprint.doc(parameters=[IF_MATCH, UNLESS_MATCH])
@blueprint.arguments(DeletionArgs, location="query")
@blueprint.response(204)
@blueprint.fails(405, 409, 412, 422, 428)
@optimistic
@anonymous(operator="records")
def delete_record(args: JSONObject, collection: str, record_id: str) -> Response:
    """Delete a record.

    Also deletes records that refer to it with `on_delete: cascade`, and clears references with
    `set_null`, in the same transaction, within the account, regardless of those collections' rules.
    A remaining reference with `restrict` is a 409.

    In a collection with `options.trash` the record, and each that goes along and whose collection
    has one, too, stays in the trash for its days. `permanently=true` deletes for good, also what is
    in the trash.
    """
    conditions = get_preconditions()
    delete = trash.delete if args.get("permanently") else records.delete
    delete(collection, record_id, conditions=conditions, by=principal())
    return Response(status=204)
