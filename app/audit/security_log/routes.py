"""`/account/security-log` and `/account/audit-logs`, for admins of the account."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import marshmallow as ma
import orjson
from flask import Response, stream_with_context

from app.accounts.own_account_routes import blueprint
from app.accounts.types import Query
from app.audit import append, checkpoints, exports
from app.audit import routes as audit
from app.audit import service as audit_log
from app.audit.chain import signing
from app.audit.log import AUDIT
from app.audit.schemas import KINDS, actor_field
from app.audit.security_log import ocsf, sealing, service, subscribers
from app.audit.security_log.log import SECURITY
from app.auth.guard import principal
from app.types import JSONObject
from app.web import fields
from app.web.access import account_admin
from app.web.fields import doc
from app.web.paging import page_body
from app.web.schemas import TEXT, Schema, View, example
from app.web.serialization import json_response

NEWLINES = "application/x-ndjson"
LINES = 500
REPORTED = (
    *("user_id", "user_email", "user_name", "target_type", "path", "fields"),
    *("reads", "records", "first_read_at", "last_read_at"),
)
LARGEST = 2**63 - 1
OCSF = "ocsf"
OCSF_EVENT = {
    "class_uid": 3002,
    "class_name": "Authentication",
    "activity_id": 1,
    "time": 1795982400123,
    "status": "Success",
}
LINE = {
    "anyOf": [
        {"$ref": "#/components/schemas/SecurityEntry"},
        {
            "type": "object",
            "description": "With `format=ocsf`: an event of OCSF (schema.ocsf.io).",
            "properties": {"class_uid": {"type": "integer"}, "time": {"type": "integer"}},
            "required": ["class_uid", "time"],
        },
    ]
}
CHAIN = "The chain: the account's id and `/security`."
EVENT = {
    "number": 12,
    "kind": "personal_data.read",
    "target_type": "col_customers",
    "target_id": "",
    "path": "list",
    "user_id": "019a9f00-0000-7000-8000-00000000000b",
    "actor": {
        "kind": "user",
        "id": "019a9f00-0000-7000-8000-00000000000b",
        "name": "Alice",
    },
    "user_email": "alice@acme.example",
    "user_name": "Alice",
    "ip_address": "203.0.113.7",
    "user_agent": "curl/8.5.0",
    "request_id": "6f9d7f0e-3a52-4b8a-9d43-0b8f3f1d1c55",
    "occurred_at": "2026-11-20T12:00:00.123456Z",
    "details": {"fields": ["email"], "records": [], "count": 2},
    "checksum": "23" * 32,
}
READER = {
    "user_id": EVENT["user_id"],
    "user_email": "alice@acme.example",
    "user_name": "Alice",
    "target_type": "col_customers",
    "path": "list",
    "fields": ["email"],
    "reads": 3,
    "records": 90,
    "first_read_at": "2026-11-20T12:00:00.123456Z",
    "last_read_at": "2026-11-20T13:00:00.123456Z",
}


class SecurityFilter(Schema):
    kind = fields.Choice(subscribers.KINDS, **doc("The kind of event."))
    user_id = fields.Text(**doc("Who acted; also `system` or `anonymous`."))
    actor_kind = fields.Choice(KINDS, **doc("What acted: `api_key`, `workflow`, ..."))
    actor_id = fields.GivenId(**doc("The id of the user, key, workflow or import that acted."))
    target_type = fields.Text(**doc("What it is about: `users`, `api_keys`, `col_posts`, ..."))
    record_id = fields.GivenId(**doc("The id of what it is about; also a record that was read."))
    path = fields.Text(**doc("How personal data was read: `list`, `export`, `webhook`, ..."))
    from_date = fields.DateTime(**doc("Not before this moment."))
    to_date = fields.DateTime(**doc("Not after this moment."))


class SecurityLogArgs(SecurityFilter):
    limit = fields.Integer(1, 500, load_default=50, **doc("Number of events to return."))
    before = fields.Integer(1, LARGEST, **doc("Only events below this number: `next_before`."))


class SecurityExportArgs(SecurityFilter):
    format = ma.fields.String(
        load_default="jsonl",
        validate=ma.validate.OneOf([*exports.FORMATS, OCSF]),
        **doc("csv, json, jsonl, or ocsf (JSON lines of OCSF events)."),
    )


@example(
    number=12,
    kind="personal_data.read",
    target_type="col_customers",
    target_id="",
    path="list",
    ip_address="203.0.113.7",
    request_id="6f9d7f0e-3a52-4b8a-9d43-0b8f3f1d1c55",
    details={"fields": ["email"], "records": [], "count": 2},
)
class SecurityEventView(View):
    number = ma.fields.Integer(**doc("From 1, without gaps."))
    kind = fields.Choice(subscribers.KINDS)
    target_type = ma.fields.String()
    target_id = ma.fields.String(**doc("Empty if there are several, or none."))
    path = ma.fields.String(allow_none=True)
    user_id = ma.fields.String()
    actor = actor_field()
    user_email = ma.fields.String(
        allow_none=True, **doc("null if erased, or of the platform's operator.")
    )
    user_name = ma.fields.String(allow_none=True)
    ip_address = ma.fields.String(allow_none=True)
    user_agent = ma.fields.String(allow_none=True)
    request_id = ma.fields.String(allow_none=True)
    occurred_at = fields.Timestamp()
    details = ma.fields.Dict(allow_none=True, **doc("null if erased."))
    checksum = ma.fields.String()


class SecurityLogPage(View):
    """A page of the security log, the newest event first."""

    items = ma.fields.List(ma.fields.Nested(SecurityEventView))
    limit = ma.fields.Integer()
    has_more = ma.fields.Boolean()
    next_before = ma.fields.Integer(allow_none=True, **doc("`before` of the next page."))


class PersonalDataReader(View):
    """Who was shown personal data, and how often."""

    user_id = ma.fields.String()
    user_email = ma.fields.String(allow_none=True)
    user_name = ma.fields.String(allow_none=True)
    target_type = ma.fields.String()
    path = ma.fields.String()
    fields_ = ma.fields.List(ma.fields.String(), data_key="fields")
    reads = ma.fields.Integer()
    records = ma.fields.Integer(**doc("How many records were shown, repeats included."))
    first_read_at = fields.Timestamp()
    last_read_at = fields.Timestamp()


class AccessReport(View):
    """Who was shown which personal data."""

    items = ma.fields.List(ma.fields.Nested(PersonalDataReader))
    is_complete = ma.fields.Boolean(**doc("false if older reads are left out."))


@example(
    id=41,
    account_id=f"{audit.ACCOUNT_ID}/security",
    operation="sign_in.succeeded",
    table_name="users",
    record_id="",
    column_name="details",
    new_value='{"application":"api"}',
)
class SecurityEntry(View):
    """An event of the security log as an entry of its chain, in the form of the audit log."""

    id = ma.fields.Integer(**doc("The number."))
    account_id = ma.fields.String(**doc(CHAIN))
    operation = ma.fields.String(**doc("The kind of event."))
    table_name = ma.fields.String()
    record_id = ma.fields.String()
    column_name = ma.fields.String()
    old_value = ma.fields.String(allow_none=True)
    new_value = ma.fields.String(allow_none=True, **doc("The details, as JSON."))
    user_id = ma.fields.String()
    actor = actor_field()
    actor_kind = fields.Choice(KINDS, allow_none=True, **doc("As in `actor`, for the digests."))
    actor_id = ma.fields.String(allow_none=True)
    actor_name = ma.fields.String(allow_none=True)
    user_email = ma.fields.String(allow_none=True)
    user_name = ma.fields.String(allow_none=True)
    es_username = ma.fields.String(allow_none=True)
    es_reason = ma.fields.String(allow_none=True)
    es_timestamp = fields.Timestamp(allow_none=True)
    ip_address = ma.fields.String(allow_none=True)
    user_agent = ma.fields.String(allow_none=True)
    request_id = ma.fields.String(allow_none=True)
    occurred_at = fields.Timestamp()
    extra_metadata = ma.fields.Dict(allow_none=True)
    digest_version = ma.fields.Integer(**doc("How the digests are made: 1 or 2."))
    salt = ma.fields.String(allow_none=True)
    values_digest = ma.fields.String()
    actor_salt = ma.fields.String(allow_none=True)
    actor_digest = ma.fields.String()
    entry_digest = ma.fields.String()
    previous_hash = ma.fields.String()
    checksum = ma.fields.String()
    masked = ma.fields.Boolean()


class SecurityCheckpoint(View):
    """A signed statement that the chain had this checksum at this number (Ed25519, in hex)."""

    account_id = ma.fields.String(**doc(CHAIN))
    entry_id = ma.fields.Integer()
    checksum = ma.fields.String()
    created_at = fields.Timestamp()
    public_key = ma.fields.String()
    signature = ma.fields.String()


class SecurityStart(SecurityCheckpoint):
    """A signed statement that the log begins after this number."""

    kind = ma.fields.String()
    removed = ma.fields.Integer(**doc("The number of events removed so far."))


class ExportedSecurityLog(View):
    """An export of the security log as one JSON document."""

    optional = ("starts",)

    items = ma.fields.List(ma.fields.Nested(SecurityEntry))
    checkpoints = ma.fields.List(ma.fields.Nested(SecurityCheckpoint))
    starts = ma.fields.List(ma.fields.Nested(SecurityStart), **doc("Of a log that was cut."))
    exported = ma.fields.Integer()
    values_masked = ma.fields.Integer()
    values_erased = ma.fields.Integer()


@example(account_id=f"{audit.ACCOUNT_ID}/security", checked=12)
class SecurityVerification(View):
    """The verification result of the security log's chain."""

    account_id = ma.fields.String(**doc(CHAIN))
    valid = ma.fields.Boolean()
    checked = ma.fields.Integer()
    first_broken_id = ma.fields.Integer(allow_none=True)
    reason = ma.fields.String(allow_none=True)
    head = ma.fields.Nested(audit.ChainHead, allow_none=True)
    unsealed = ma.fields.Integer(**doc("Events that have no place in the chain yet."))
    values_masked = ma.fields.Integer()
    values_erased = ma.fields.Integer()
    start = ma.fields.Nested(SecurityStart, allow_none=True, **doc("If it was cut."))
    checkpoint = ma.fields.Nested(SecurityCheckpoint, allow_none=True)


class OwnAuditArgs(audit.EntryArgs):
    """Filters, sort order and paging of the account's audit entries."""

    class Meta:
        """The account is the caller's."""

        exclude = ("account_id",)


class OwnExportArgs(audit.ExportArgs):
    """Filters and format of an export of the account's audit entries."""

    class Meta:
        """The account is the caller's."""

        exclude = ("account_id",)


@blueprint.route("/audit-logs", methods=["GET"])
@blueprint.arguments(OwnAuditArgs, location="query")
@blueprint.response(200, audit.AuditEntryPage, example={"audit_logging_enabled": True})
@account_admin
def list_own_audit_logs(args: Query) -> Response:
    """List your account's audit entries, the newest first.

    Values are masked as in the history of the record: of fields and records that you may not view,
    and personal ones unless you are in the group `pii_access`.
    """
    found = audit_log.page_of_account(_account_id(), args, by=principal())
    page = page_body(*found, args)
    return json_response({**page, "audit_logging_enabled": append.enabled()})


@blueprint.route("/audit-logs/export", methods=["GET"])
@blueprint.arguments(OwnExportArgs, location="query")
@blueprint.response(200, audit.AuditEntry, content_type=NEWLINES)
@blueprint.alt_response(200, schema=audit.ExportedLog, description="The entries.")
@blueprint.alt_response(
    200, schema=TEXT, content_type="text/csv", example="id,...", description="The entries."
)
@account_admin
def export_own_audit_logs(args: Query) -> Response:
    """Export your account's audit entries in the order of their chain.

    Masked as in the list; without filters the export verifies with docs/verify_audit.py.
    """
    format, query = args["format"], {**args, "account_id": _account_id()}
    found = audit_log.export(query, by=principal())
    signed = (checkpoints.for_account(_account_id()), signing.starts(AUDIT, _account_id()))
    text = exports.serialize(format, found, *signed)
    return _file(text, exports.FORMATS[format], f"audit-log.{format}")


@blueprint.route("/security-log", methods=["GET"])
@blueprint.arguments(SecurityLogArgs, location="query")
@blueprint.response(
    200,
    SecurityLogPage,
    example={"items": [EVENT], "limit": 50, "has_more": False, "next_before": None},
)
@account_admin
def list_security_log(args: Query) -> Response:
    """List the events of your account's security log, the newest first.

    Sign-ins and failures, ended sessions, changes of credentials and providers, and who was shown
    personal data unmasked.
    """
    return json_response(service.page(_account_id(), args))


@blueprint.route("/security-log/export", methods=["GET"])
@blueprint.arguments(SecurityExportArgs, location="query")
@blueprint.response(200, LINE, content_type=NEWLINES, example=OCSF_EVENT)
@blueprint.alt_response(
    200,
    schema=ExportedSecurityLog,
    description="The entries.",
)
@blueprint.alt_response(
    200, schema=TEXT, content_type="text/csv", example="id,...", description="The entries."
)
@account_admin
def export_security_log(args: Query) -> Response:
    """Export your account's security log in the order of its numbers.

    Entries have the form of the audit log's, so docs/verify_audit.py verifies an export without
    filters. `ocsf` has JSON lines of OCSF events instead.
    """
    return exported(_account_id(), args["format"], args)


@blueprint.route("/security-log/verify", methods=["GET"])
@blueprint.response(200, SecurityVerification)
@account_admin
def verify_security_log() -> Response:
    """Verify the chain of your account's security log.

    `checkpoint` is a signed statement of its end; keep it where the operator cannot change it.
    """
    return json_response(service.verify_chain(_account_id()))


@blueprint.route("/security-log/access-report", methods=["GET"])
@blueprint.arguments(SecurityFilter, location="query")
@blueprint.response(200, AccessReport, example={"items": [READER], "is_complete": True})
@account_admin
def get_access_report(args: Query) -> Response:
    """Get who was shown personal data of a record, or what a user was shown.

    Filter by `record_id` and `target_type`, or by `user_id`. It has the newest 10,000 matching
    reads.
    """
    return json_response(service.access_report(_account_id(), args))


def exported(account_id: str, format: str, query: Query) -> Response:
    if format == OCSF:
        views = service.export_views(account_id, query)
        text = _lines(ocsf.event(view, account_id) for view in views)
        return _file(text, NEWLINES, "security-log.ocsf.jsonl")
    found = service.export(account_id, query)
    signed = sealing.sign(account_id) if format == "json" else None
    start = signing.start_of(SECURITY, account_id)
    text = exports.serialize(format, found, [signed] if signed else [], [start] if start else [])
    return _file(text, exports.FORMATS[format], f"security-log.{format}")


def reported(account_id: str, query: Query) -> Response:
    """The response with an access report as a CSV file."""
    found = service.access_report(account_id, query)["items"]
    return _file(exports.CELLS.write(REPORTED, found, LINES), "text/csv", "personal-data-read.csv")


def _file(text: Iterable[bytes], mimetype: str, name: str) -> Response:
    headers = {"Content-Disposition": f"attachment; filename={name}"}
    streamed = stream_with_context(iter(text))
    return Response(streamed, headers=headers, mimetype=mimetype, direct_passthrough=True)


def _lines(found: Iterable[JSONObject]) -> Iterator[bytes]:
    chunk: list[bytes] = []
    for one in found:
        chunk.append(orjson.dumps(one, option=orjson.OPT_APPEND_NEWLINE))
        if len(chunk) == LINES:
            yield b"".join(chunk)
            chunk.clear()
    yield b"".join(chunk)


def _account_id() -> str:
    return principal().require_account_id()
