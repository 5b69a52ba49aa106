"""`/audit-logs`: list, read, export and verify the audit log (spec 4.6, contract section 7)."""

from __future__ import annotations

from typing import Any

import marshmallow as ma
from flask import Response, stream_with_context

from app import rest
from app.audit import append, checkpoints, service, transfer, verify
from app.auth.guard import principal
from app.rest import fields
from app.rest.access import superadmin
from app.rest.blueprint import Blueprint
from app.rest.paging import Page, PageArgs, items_field, page_body
from app.rest.responses import json_response
from app.rest.schemas import TEXT, Schema

blueprint = Blueprint(
    "Audit logs",
    __name__,
    url_prefix=f"{rest.PREFIX}/audit-logs",
    description="Every change of data, in one chain of hashes per account. For superadmins.",
)

ACCOUNT_ID = "019a9f00-0000-7000-8000-00000000000a"
EXAMPLE = {
    "id": 41,
    "account_id": ACCOUNT_ID,
    "operation": "UPDATE",
    "table_name": "col_posts",
    "record_id": "019a9f00-0000-7000-8000-000000000001",
    "column_name": "title",
    "old_value": "Hello",
    "new_value": "Hello, world",
    "user_id": "019a9f00-0000-7000-8000-00000000000b",
    "user_email": "alice@acme.example",
    "user_name": "Alice",
    "es_username": None,
    "es_reason": None,
    "es_timestamp": None,
    "ip_address": "203.0.113.7",
    "user_agent": "curl/8.5.0",
    "request_id": "6f9d7f0e-3a52-4b8a-9d43-0b8f3f1d1c55",
    "occurred_at": "2026-11-20T12:00:00.123456Z",
    "extra_metadata": None,
    "salt": "7d8f" * 8,
    "values_digest": "ab" * 32,
    "actor_salt": "05e1" * 8,
    "actor_digest": "cd" * 32,
    "entry_digest": "ef" * 32,
    "previous_hash": "01" * 32,
    "checksum": "23" * 32,
    "masked": False,
}
CHECKPOINT = {
    "account_id": ACCOUNT_ID,
    "entry_id": 41,
    "checksum": "23" * 32,
    "created_at": "2026-11-20T12:10:00.000000Z",
    "public_key": "45" * 32,
    "signature": "67" * 64,
}
VERIFIED = {
    "valid": True,
    "account_id": None,
    "checked": 41,
    "first_broken_id": None,
    "reason": None,
    "head": {"id": 41, "checksum": "23" * 32},
    "values_masked": 0,
    "values_erased": 0,
}


def _nullable(description: str | None = None) -> ma.fields.String:
    metadata = {"description": description} if description else {}
    return ma.fields.String(required=True, allow_none=True, metadata=metadata)


class Entry(Schema):
    """One change of one column."""

    id = ma.fields.Integer(required=True)
    account_id = ma.fields.String(required=True, metadata={"description": "Whose chain it is in."})
    operation = ma.fields.String(required=True)
    table_name = ma.fields.String(required=True)
    record_id = ma.fields.String(required=True)
    column_name = ma.fields.String(required=True)
    old_value = _nullable("A text as it is, anything else as JSON text.")
    new_value = _nullable()
    user_id = ma.fields.String(required=True)
    user_email = _nullable("null where it was erased.")
    user_name = _nullable()
    es_username = _nullable("Who signed electronically.")
    es_reason = _nullable()
    es_timestamp = fields.Timestamp(required=True, allow_none=True)
    ip_address = _nullable()
    user_agent = _nullable()
    request_id = _nullable("The X-Correlation-ID of the request.")
    occurred_at = fields.Timestamp(required=True)
    extra_metadata = ma.fields.Dict(required=True, allow_none=True)
    salt = _nullable("null where the values are masked or erased.")
    values_digest = ma.fields.String(required=True)
    actor_salt = _nullable("null where the actor was erased.")
    actor_digest = ma.fields.String(required=True)
    entry_digest = ma.fields.String(required=True)
    previous_hash = ma.fields.String(required=True)
    checksum = ma.fields.String(required=True)
    masked = ma.fields.Boolean(
        required=True, metadata={"description": "Whether the values are hidden from this caller."}
    )


class EntryPage(Page):
    """A page of entries."""

    items = items_field(Entry)
    audit_logging_enabled = ma.fields.Boolean(required=True)


class Checkpoint(Schema):
    """A signed statement that a chain had this entry at this place (Ed25519, in hex)."""

    account_id = ma.fields.String(required=True)
    entry_id = ma.fields.Integer(required=True)
    checksum = ma.fields.String(required=True)
    created_at = fields.Timestamp(required=True)
    public_key = ma.fields.String(required=True)
    signature = ma.fields.String(required=True)


class CheckpointPage(Page):
    """A page of checkpoints, the newest first."""

    items = items_field(Checkpoint)


class ExportedLog(Schema):
    """An export as one JSON document."""

    items = ma.fields.List(ma.fields.Nested(Entry), required=True)
    checkpoints = ma.fields.List(ma.fields.Nested(Checkpoint), required=True)
    exported = ma.fields.Integer(required=True)
    values_masked = ma.fields.Integer(required=True)
    values_erased = ma.fields.Integer(required=True)


class Head(Schema):
    """The last entry of a chain."""

    id = ma.fields.Integer(required=True)
    checksum = ma.fields.String(required=True)


class ChainReport(Schema):
    """What was found of one chain; the first fault ends the look at it."""

    account_id = _nullable("The account; of several the one whose chain is broken.")
    valid = ma.fields.Boolean(required=True)
    checked = ma.fields.Integer(required=True)
    first_broken_id = ma.fields.Integer(required=True, allow_none=True)
    reason = _nullable("What is wrong, in words.")
    head = ma.fields.Nested(Head, required=True, allow_none=True)
    values_masked = ma.fields.Integer(required=True)
    values_erased = ma.fields.Integer(required=True)


class Verification(ChainReport):
    """What was found of all chains together, and of each."""

    chains = ma.fields.List(ma.fields.Nested(ChainReport), required=True)


class WhichArgs(Schema):
    """Which entries."""

    account_id = fields.Text(metadata={"description": "Only entries of this account's chain."})
    table_name = fields.Text(metadata={"description": "`users`, `col_posts`, ..."})
    record_id = fields.Text(metadata={"description": "The id of the row that changed."})
    user_id = fields.Text(metadata={"description": "Who acted; also `system` or `anonymous`."})
    operation = ma.fields.String(
        validate=ma.validate.OneOf([append.CREATE, append.UPDATE, append.DELETE]),
        metadata={"description": "What was done."},
    )
    from_date = fields.DateTime(metadata={"description": "Not before this moment."})
    to_date = fields.DateTime(metadata={"description": "Not after this moment."})

    @ma.post_load
    def settle_account(self, args: dict[str, Any], **options: Any) -> dict[str, Any]:
        """Ids are kept in lower case."""
        account = {"account_id": args["account_id"].lower()} if "account_id" in args else {}
        return args | account


class EntryArgs(WhichArgs, PageArgs):
    """Which entries, in which order."""

    default_limit = 50

    limit = fields.Integer(1, 500, metadata={"description": "How many items to return."})
    page_size = fields.Integer(1, 500, metadata={"description": "Another name for limit."})
    sort_by = fields.Text(
        load_default="occurred_at",
        metadata={"description": f"One of {', '.join(service.SORTABLE)}."},
    )
    sort_order = ma.fields.String(
        load_default="desc",
        validate=ma.validate.OneOf(["asc", "desc"]),
        metadata={"description": "`desc` where it is absent."},
    )
    include_total = ma.fields.Boolean(
        load_default=True, metadata={"description": "false skips the count: `total` is null."}
    )


class ExportArgs(WhichArgs):
    """Which entries, in which format."""

    format = ma.fields.String(
        load_default="jsonl",
        validate=ma.validate.OneOf(list(transfer.FORMATS)),
        metadata={"description": "csv, json or jsonl."},
    )


class AccountArgs(Schema):
    """Whose chain."""

    account_id = fields.Text(metadata={"description": "Only the chain of this account."})


class CheckpointArgs(AccountArgs, PageArgs):
    """Whose checkpoints."""


EXPORTED = {"items": [EXAMPLE], "checkpoints": [], "exported": 1}
EXPORTED |= {"values_masked": 0, "values_erased": 0}
PAGE = page_body([EXAMPLE], 1, {"skip": 0, "limit": 50})


@blueprint.route("", methods=["GET"])
@blueprint.arguments(EntryArgs, location="query")
@blueprint.response(200, EntryPage, example={**PAGE, "audit_logging_enabled": True})
@blueprint.fails(400)
@superadmin
def list_audit_logs(args: dict[str, Any]) -> Response:
    """List audit entries, the newest first.

    Personal values are masked unless the caller is in the group `pii_access`.
    """
    found = page_body(*service.page(args, by=principal()), args)
    return json_response({**found, "audit_logging_enabled": append.enabled()})


@blueprint.route("/<large:entry_id>", methods=["GET"])
@blueprint.response(200, Entry, example=EXAMPLE)
@superadmin
def get_audit_log(entry_id: str) -> Response:
    """Get an audit entry."""
    return json_response(service.get(int(entry_id), by=principal()))


@blueprint.route("/export", methods=["GET"])
@blueprint.arguments(ExportArgs, location="query")
@blueprint.response(200, Entry, example=EXAMPLE, content_type="application/x-ndjson")
@blueprint.alt_response(200, schema=ExportedLog, example=EXPORTED, description="The entries.")
@blueprint.alt_response(
    200, schema=TEXT, content_type="text/csv", example="id,...", description="The entries."
)
@superadmin
def export_audit_logs(args: dict[str, Any]) -> Response:
    """Export audit entries, chain by chain, each in its order.

    `X-Service-Values-Masked` and `X-Service-Values-Erased` say of how many entries, when the
    export began. CSV and JSON lines are the entries; JSON also tells checkpoints and, in the end,
    how many values are masked or erased. In CSV an apostrophe disarms cells that a spreadsheet
    would run; docs/audit.md says how to read them back.
    """
    format, by = args["format"], principal()
    text = transfer.written(
        format, service.exported(args, by=by), checkpoints.of(args.get("account_id"))
    )
    headers = transfer.headers(format, service.told_of_export(args, by=by))
    mimetype = transfer.FORMATS[format]
    text = stream_with_context(text)
    return Response(text, headers=headers, mimetype=mimetype, direct_passthrough=True)


@blueprint.route("/verify", methods=["GET"])
@blueprint.arguments(AccountArgs, location="query")
@blueprint.response(200, Verification, example={**VERIFIED, "chains": [VERIFIED]})
@blueprint.fails(404)
@superadmin
def verify_audit_logs(args: dict[str, Any]) -> Response:
    """Verify the chain of an account, or all chains.

    `head` is the end of the chain where it is one account's. A 404 says that there is neither such
    an account nor anything of its chain.
    """
    account_id = args.get("account_id", "").lower() or None
    return json_response(verify.known(account_id, verify.everything(account_id)))


@blueprint.route("/checkpoints", methods=["GET"])
@blueprint.arguments(CheckpointArgs, location="query")
@blueprint.response(
    200, CheckpointPage, example=page_body([CHECKPOINT], 1, {"skip": 0, "limit": 25})
)
@superadmin
def list_checkpoints(args: dict[str, Any]) -> Response:
    """List the signed checkpoints of chains, the newest first."""
    found = checkpoints.page(args.get("account_id"), args["skip"], args["limit"])
    return json_response(page_body(*found, args))
