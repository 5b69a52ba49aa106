"""`/records/{collection}/{id}/history`, `/restore` and `/erase`, and `/users/{id}/erase`."""

from __future__ import annotations

import marshmallow as ma
from flask import Response

from app import clock, web
from app.audit import append
from app.audit.schemas import actor_field
from app.auth.guard import optimistic, principal
from app.collections import definitions
from app.errors import Malformed
from app.records import trash
from app.records.history import erasure, service
from app.records.routes.records import EXAMPLE as RECORD
from app.records.routes.records import (
    IF_MATCH,
    UNLESS_MATCH,
    RecordObject,
    get_preconditions,
    tagged,
)
from app.records.store import limit_size
from app.types import JSONObject
from app.web import fields
from app.web.access import anonymous, superadmin
from app.web.blueprint import Blueprint
from app.web.fields import doc
from app.web.paging import Page, PageArgs, items_field, page_body
from app.web.schemas import Schema, View, example
from app.web.serialization import json_response

blueprint = Blueprint(
    "History",
    __name__,
    url_prefix=web.PREFIX,
    description="Former states of records from the audit log, and erasure.",
)

BY_ID = "/records/<collection>/<record_id>"
CHANGE = {
    "audit_id": 41,
    "operation": "UPDATE",
    "occurred_at": "2026-11-20T12:00:00.123456Z",
    "user_id": RECORD["created_by"],
    "actor": {"kind": "user", "id": RECORD["created_by"], "name": "Alice"},
    "user_email": "alice@acme.example",
    "user_name": "Alice",
    "es_username": None,
    "es_reason": None,
    "es_timestamp": None,
    "request_id": "6f9d7f0e-3a52-4b8a-9d43-0b8f3f1d1c55",
    "changes": [
        {
            "field": "title",
            "old_value": "Hello",
            "new_value": "Hello, world",
            "masked": False,
            "erased": False,
        }
    ],
}
ERASED = {
    "message": "The record is erased.",
    "account_id": RECORD["account_id"],
    "values_erased": 7,
    "actors_erased": 0,
    "deliveries_erased": 2,
}
ONLY_TRASH = "Only a record in the trash takes values as it comes back."
PAGE = {**page_body([CHANGE], 1, {"skip": 0, "limit": 25}), "truncated_before": None}


class FieldChange(View):
    """The change of a field that the caller may view."""

    field = ma.fields.String()
    old_value = ma.fields.Raw(allow_none=True)
    new_value = ma.fields.Raw(allow_none=True)
    masked = ma.fields.Boolean()
    erased = ma.fields.Boolean()


@example(
    audit_id=41,
    operation="UPDATE",
    request_id="6f9d7f0e-3a52-4b8a-9d43-0b8f3f1d1c55",
    changes=[
        {
            "field": "title",
            "old_value": "Hello",
            "new_value": "Hello, world",
            "masked": False,
            "erased": False,
        }
    ],
)
class RecordChange(View):
    audit_id = ma.fields.Integer(**doc("The last audit entry of the change; for `restore`."))
    operation = fields.Choice(append.OPERATIONS)
    occurred_at = fields.Timestamp()
    user_id = ma.fields.String()
    actor = actor_field()
    user_email = ma.fields.String(allow_none=True)
    user_name = ma.fields.String(allow_none=True)
    es_username = ma.fields.String(allow_none=True)
    es_reason = ma.fields.String(allow_none=True)
    es_timestamp = fields.Timestamp(allow_none=True)
    request_id = ma.fields.String(allow_none=True)
    changes = ma.fields.List(ma.fields.Nested(FieldChange))


class RecordChangePage(Page):
    """A page of changes, the newest first."""

    items = items_field(RecordChange)
    truncated_before = fields.Timestamp(
        allow_none=True,
        **doc(
            "Changes before this moment were removed by retention; null if the history is complete."
        ),
    )


class RestoreBody(Schema):
    audit_id = fields.Integer(
        1, 2**63 - 1, **doc("Needed but for a record in the trash of its collection.")
    )
    values = ma.fields.Dict(
        **doc("Fields to change in a record in the trash as it comes back, as PATCH takes them.")
    )


class Erasure(View):
    """The numbers of erased items."""

    optional = ("table_name", "record_id", "user_id", "unfinished_accounts")

    message = ma.fields.String()
    account_id = fields.Id()
    table_name = ma.fields.String()
    record_id = ma.fields.String()
    user_id = ma.fields.String()
    values_erased = ma.fields.Integer(**doc("Audit entries whose values were erased."))
    actors_erased = ma.fields.Integer(**doc("Audit entries whose actor was erased."))
    deliveries_erased = ma.fields.Integer(**doc("Webhook deliveries whose values were erased."))
    unfinished_accounts = ma.fields.List(
        fields.Id(),
        **doc("Of a user: accounts whose audit log cannot be sealed now. A job erases them later."),
    )


class HistoryArgs(PageArgs):
    """Paging of changes."""


@blueprint.route(f"{BY_ID}/history", methods=["GET"])
@blueprint.arguments(HistoryArgs, location="query")
@blueprint.response(200, RecordChangePage, example=PAGE)
@blueprint.fails(413)
@optimistic
@anonymous(operator="records")
def list_record_changes(args: JSONObject, collection: str, record_id: str) -> Response:
    """List the changes of a record, the newest first.

    Read from the audit log. Requires the update rule (for a deleted record: on its last state).
    Shows only fields that the caller may view, masked as in the record, and omits changes of other
    fields. `truncated_before` says that older changes were removed by retention.
    """
    found = service.page(collection, record_id, args["skip"], args["limit"], by=principal())
    body = page_body(limit_size(found.changes), found.total, args)
    before = clock.iso(found.truncation.before) if found.truncation else None
    return json_response({**body, "truncated_before": before})


@blueprint.route(f"{BY_ID}/restore", methods=["POST"])
@blueprint.doc(parameters=[IF_MATCH, UNLESS_MATCH])
@blueprint.arguments(RestoreBody, required=False, example={"audit_id": 41})
@blueprint.response(200, RecordObject, example=RECORD)
@blueprint.fails(405, 409, 412, 428)
@optimistic
@anonymous(operator="records")
def restore_record(body: JSONObject, collection: str, record_id: str) -> Response:
    """Restore the state after an audit entry, as a new change, or a record in the trash.

    With `audit_id` it requires the update rule, and write access to every field that differs.
    Returns 404 for deleted records, and 404 `history_truncated` for entries that retention removed.
    Fields that are required now and had no value then keep their values.

    Without, in a collection with `options.trash`, the record comes back from there under its id, if
    the delete rule admits it. A unique value that another record has by now, or a required
    reference whose target is gone or in the trash itself, is a 409 that names it, and so is any
    reference that a rule names; others lose targets that are gone, and the answer has the names of
    these fields in `_lost`. `values` change it at once, if the update rule admits that, too:
    such as those of fields that have become required meanwhile.
    """
    conditions, by = get_preconditions(), principal()
    audit_id = body.get("audit_id")
    if audit_id is None:
        if not definitions.get(collection).trash_days:
            message = "Missing data for required field."
            raise Malformed.at("body", "audit_id", msg=message, type="missing")
        given = body.get("values", {})
        record = trash.restore(collection, record_id, given, conditions=conditions, by=by)
        return tagged(record)
    if "values" in body:
        raise Malformed.at("body", "values", msg=ONLY_TRASH, type="value_error")
    return tagged(service.restore(collection, record_id, audit_id, conditions=conditions, by=by))


@blueprint.route(f"{BY_ID}/erase", methods=["POST"])
@blueprint.response(200, Erasure, example=ERASED)
@blueprint.fails(405, 409, 428)
@optimistic
@anonymous
def erase_record(collection: str, record_id: str) -> Response:
    """Erase a record for good.

    Deletes the record, and erases its values from the audit log and from webhook deliveries; the
    chain still verifies. For superadmins, and for members of `pii_access` who may delete the
    record. Also works for deleted records, and for superadmins in deleted collections. Records
    deleted by `on_delete` keep their history.
    """
    return json_response(erasure.record(collection, record_id, by=principal()))


@blueprint.route("/users/<uuid:user_id>/erase", methods=["POST"])
@blueprint.response(200, Erasure, example=ERASED | {"message": "The user is erased."})
@blueprint.fails(409)
@superadmin
def erase_user(user_id: str) -> Response:
    """Erase a user for good.

    Deletes the user, and erases address, name and other personal data from the audit log (of all
    accounts), from records' `created_by` and `updated_by`, and from webhook deliveries; the chains
    still verify. Also works for deleted users.
    """
    return json_response(erasure.user(user_id, by=principal()))
