"""`/audit-logs`: listing, exporting and verifying the audit log."""

from __future__ import annotations

import marshmallow as ma
from flask import Response, stream_with_context

from app import web
from app.accounts.types import Query
from app.audit import append, checkpoints, exports, service
from app.audit.chain import signing, verify
from app.audit.log import AUDIT
from app.audit.schemas import KINDS, actor_field
from app.auth.guard import principal
from app.types import JSONObject
from app.web import fields
from app.web.access import superadmin
from app.web.blueprint import Blueprint
from app.web.fields import doc
from app.web.paging import Page, PageArgs, items_field, page_body, page_of
from app.web.schemas import TEXT, Schema, View, example
from app.web.serialization import json_response

blueprint = Blueprint(
    "Audit logs",
    __name__,
    url_prefix=f"{web.PREFIX}/audit-logs",
    description="Every data change, in one hash chain per account. For superadmins.",
)

ACCOUNT_ID = "019a9f00-0000-7000-8000-00000000000a"


@example(
    id=41,
    operation="UPDATE",
    table_name="col_posts",
    record_id="019a9f00-0000-7000-8000-000000000001",
    column_name="title",
    old_value="Hello",
    new_value="Hello, world",
    ip_address="203.0.113.7",
    request_id="6f9d7f0e-3a52-4b8a-9d43-0b8f3f1d1c55",
    digest_version=2,
    salt="7d8f" * 8,
    actor_salt="05e1" * 8,
)
class AuditEntry(View):
    """One change of one column."""

    id = ma.fields.Integer()
    account_id = fields.Id(**doc("The account whose chain has this entry."))
    operation = fields.Choice(append.OPERATIONS)
    table_name = ma.fields.String()
    record_id = ma.fields.String()
    column_name = ma.fields.String()
    old_value = ma.fields.String(
        allow_none=True, **doc("Strings as they are, other values as JSON.")
    )
    new_value = ma.fields.String(allow_none=True)
    user_id = ma.fields.String()
    actor = actor_field()
    actor_kind = fields.Choice(KINDS, allow_none=True, **doc("As in `actor`, for the digests."))
    actor_id = ma.fields.String(allow_none=True)
    actor_name = ma.fields.String(allow_none=True)
    user_email = ma.fields.String(allow_none=True, **doc("null if erased."))
    user_name = ma.fields.String(allow_none=True)
    es_username = ma.fields.String(allow_none=True, **doc("The electronic signature's user."))
    es_reason = ma.fields.String(allow_none=True)
    es_timestamp = fields.Timestamp(allow_none=True)
    ip_address = ma.fields.String(allow_none=True)
    user_agent = ma.fields.String(allow_none=True)
    request_id = ma.fields.String(allow_none=True, **doc("The X-Correlation-ID of the request."))
    occurred_at = fields.Timestamp()
    extra_metadata = ma.fields.Dict(allow_none=True)
    digest_version = ma.fields.Integer(**doc("How the digests are made: 1 or 2."))
    salt = ma.fields.String(allow_none=True, **doc("null if the values are masked or erased."))
    values_digest = ma.fields.String()
    actor_salt = ma.fields.String(allow_none=True, **doc("null if the actor was erased."))
    actor_digest = ma.fields.String()
    entry_digest = ma.fields.String()
    previous_hash = ma.fields.String()
    checksum = ma.fields.String()
    masked = ma.fields.Boolean(**doc("Whether the values are masked for the caller."))


class AuditEntryPage(Page):
    items = items_field(AuditEntry)
    audit_logging_enabled = ma.fields.Boolean()


@example(entry_id=41)
class Checkpoint(View):
    """A signed statement that a chain had this checksum at this entry (Ed25519, in hex)."""

    account_id = fields.Id()
    entry_id = ma.fields.Integer()
    checksum = ma.fields.String()
    created_at = fields.Timestamp()
    public_key = ma.fields.String()
    signature = ma.fields.String()


@example(checkpoints=[], values_masked=0, values_erased=0)
class ExportedLog(View):
    """An export as one JSON document."""

    optional = ("starts",)

    items = ma.fields.List(ma.fields.Nested(AuditEntry))
    checkpoints = ma.fields.List(ma.fields.Nested(Checkpoint))
    starts = ma.fields.List(ma.fields.Nested(lambda: ChainStart()), **doc("Of logs that were cut."))
    exported = ma.fields.Integer()
    values_masked = ma.fields.Integer()
    values_erased = ma.fields.Integer()


class ChainHead(View):
    """The last entry of a chain."""

    id = ma.fields.Integer()
    checksum = ma.fields.String()


class ChainStart(View):
    """A signed statement that the chain begins after this entry."""

    account_id = fields.Id()
    entry_id = ma.fields.Integer()
    checksum = ma.fields.String()
    created_at = ma.fields.String()
    kind = ma.fields.String()
    removed = ma.fields.Integer(**doc("The number of entries removed so far."))
    public_key = ma.fields.String()
    signature = ma.fields.String()


@example(
    account_id=None,
    checked=41,
    head={"id": 41, "checksum": "23" * 32},
    unsealed=0,
    values_masked=0,
    values_erased=0,
)
@example(
    checked=41,
    head={"id": 41, "checksum": "23" * 32},
    unsealed=0,
    values_masked=0,
    values_erased=0,
)
class ChainReport(View):
    """The verification result of one chain, up to its first fault."""

    account_id = fields.Id(
        allow_none=True, **doc("The account; of several, the first with a broken chain.")
    )
    valid = ma.fields.Boolean()
    checked = ma.fields.Integer()
    first_broken_id = ma.fields.Integer(allow_none=True)
    reason = ma.fields.String(allow_none=True, **doc("A description of the fault."))
    head = ma.fields.Nested(ChainHead, allow_none=True)
    start = ma.fields.Nested(
        ChainStart, allow_none=True, **doc("Where the chain begins, if older entries were removed.")
    )
    unsealed = ma.fields.Integer(**doc("Committed changes that have no place in the chain yet."))
    values_masked = ma.fields.Integer()
    values_erased = ma.fields.Integer()


class Verification(ChainReport):
    """The verification result of all chains together and of each."""

    chains = ma.fields.List(ma.fields.Nested(ChainReport))


class AuditEntryFilter(Schema):
    account_id = fields.Text(**doc("Only entries of this account's chain."))
    table_name = fields.Text(**doc("`users`, `col_posts`, ..."))
    record_id = fields.GivenId(**doc("The id of the row that changed."))
    user_id = fields.Text(**doc("The acting user; also `system` or `anonymous`."))
    actor_kind = fields.Choice(KINDS, **doc("What acted: `api_key`, `workflow`, ..."))
    actor_id = fields.GivenId(**doc("The id of the user, key, workflow or import that acted."))
    operation = fields.Choice(append.OPERATIONS, **doc("The operation."))
    from_date = fields.DateTime(**doc("Not before this moment."))
    to_date = fields.DateTime(**doc("Not after this moment."))

    @ma.post_load
    def normalize_account(self, args: JSONObject, **options: object) -> JSONObject:
        """Convert the account id to lower case, as stored."""
        account = {"account_id": args["account_id"].lower()} if "account_id" in args else {}
        return args | account


class EntryArgs(AuditEntryFilter, PageArgs):
    """Filters, sort order and paging of audit entries."""

    default_limit = 50

    limit = fields.Integer(1, 500, **doc("Number of items to return."))
    page_size = fields.Integer(1, 500, **doc("Alias of limit."))
    sort_by = fields.DocumentedChoice(
        service.SORTABLE, load_default="occurred_at", **doc("The sort field.")
    )
    sort_order = ma.fields.String(
        load_default="desc",
        validate=ma.validate.OneOf(["asc", "desc"]),
        **doc("Sort direction, `desc` by default."),
    )
    include_total = ma.fields.Boolean(
        load_default=True, **doc("false skips counting; `total` is null.")
    )


class ExportArgs(AuditEntryFilter):
    format = ma.fields.String(
        load_default="jsonl",
        validate=ma.validate.OneOf(list(exports.FORMATS)),
        **doc("csv, json or jsonl."),
    )


class AccountArgs(Schema):
    account_id = fields.Text(**doc("Only the chain of this account."))


class CheckpointArgs(AccountArgs, PageArgs):
    """Filters and paging of checkpoints."""


@blueprint.route("", methods=["GET"])
@blueprint.arguments(EntryArgs, location="query")
@blueprint.response(200, AuditEntryPage, example={"audit_logging_enabled": True})
@superadmin
def list_audit_logs(args: Query) -> Response:
    """List audit entries, the newest first.

    Personal values are masked unless the caller is in the group `pii_access`.
    """
    page = page_body(*service.page(args, by=principal()), args)
    return json_response({**page, "audit_logging_enabled": append.enabled()})


@blueprint.route("/<large:entry_id>", methods=["GET"])
@blueprint.response(200, AuditEntry)
@superadmin
def get_audit_log(entry_id: str) -> Response:
    """Get an audit entry.

    Ids are unique across all accounts. Personal values are masked unless the caller is in the group
    `pii_access`.
    """
    return json_response(service.get(int(entry_id), by=principal()))


@blueprint.route("/export", methods=["GET"])
@blueprint.arguments(ExportArgs, location="query")
@blueprint.response(200, AuditEntry, content_type="application/x-ndjson")
@blueprint.alt_response(200, schema=ExportedLog, description="The entries.")
@blueprint.alt_response(
    200, schema=TEXT, content_type="text/csv", example="id,...", description="The entries."
)
@superadmin
def export_audit_logs(args: Query) -> Response:
    """Export audit entries, chain by chain in order of their ids.

    `X-Service-Values-Masked` and `X-Service-Values-Erased` are the numbers of such entries when the
    export began. CSV and JSON lines contain the entries; JSON adds the checkpoints, the final
    numbers and, of logs that were cut, the starts. In CSV an apostrophe escapes cells that a
    spreadsheet would execute; docs/audit.md explains how to read them back.
    """
    format, by = args["format"], principal()
    account_id = args.get("account_id")
    signed = (checkpoints.for_account(account_id), signing.starts(AUDIT, account_id))
    text = exports.serialize(format, service.export(args, by=by), *signed)
    headers = exports.headers(format, service.count_hidden(args, by=by))
    mimetype = exports.FORMATS[format]
    text = stream_with_context(text)
    return Response(text, headers=headers, mimetype=mimetype, direct_passthrough=True)


@blueprint.route("/verify", methods=["GET"])
@blueprint.arguments(AccountArgs, location="query")
@blueprint.response(200, Verification)
@superadmin
def verify_audit_logs(args: Query) -> Response:
    """Verify the chain of an account, or all chains.

    `head` is the end of the chain if one account is verified. A 404 means that neither the account
    nor a chain of it exists.
    """
    account_id = args.get("account_id", "").lower() or None
    return json_response(verify.require_chain(account_id, verify.verify_all(AUDIT, account_id)))


@blueprint.route("/checkpoints", methods=["GET"])
@blueprint.arguments(CheckpointArgs, location="query")
@blueprint.response(200, page_of(Checkpoint))
@superadmin
def list_checkpoints(args: Query) -> Response:
    """List the signed checkpoints of chains, the newest first.

    With `account_id` of one chain, else of all. `/audit-logs/verify` checks the chains themselves.
    """
    result = checkpoints.page(args.get("account_id"), args["skip"], args["limit"])
    return json_response(page_body(*result, args))
