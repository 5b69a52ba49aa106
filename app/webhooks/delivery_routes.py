"""The delivery log of webhooks (spec 4.7, contract section 8)."""

from __future__ import annotations

from typing import Any

import marshmallow as ma

from app import rest
from app.accounts.schemas import ACCOUNT
from app.auth.guard import principal
from app.rest import fields
from app.rest.access import account_admin
from app.rest.blueprint import Blueprint
from app.rest.paging import OffsetArgs, Page, items_field, page_body
from app.rest.schemas import Message, Schema
from app.webhooks import log, payload, service
from app.webhooks.models import STATES
from app.webhooks.routes import ANSWER, TIME, WEBHOOK

blueprint = Blueprint(
    "Deliveries of webhooks",
    __name__,
    url_prefix=f"{rest.PREFIX}/webhooks",
    description="What became of each delivery, and making it again.",
)

PAYLOAD = {
    "event": "records.create",
    "collection": "posts",
    "record": {"id": "019a9f00-0000-7000-8000-0000000000b0", "title": "Hello"},
    "timestamp": TIME,
    "webhook_id": WEBHOOK["id"],
    "account_id": ACCOUNT["id"],
}
DELIVERY = {
    "id": "019a9f00-0000-7000-8000-0000000000c0",
    "webhook_id": WEBHOOK["id"],
    "account_id": ACCOUNT["id"],
    "event": "records.create",
    "payload": PAYLOAD,
    "status": "delivered",
    "attempt_number": 1,
    "response_status": 200,
    **ANSWER,
    "next_retry_at": None,
    "delivered_at": TIME,
    "replay_of": None,
    "created_at": TIME,
}
ATTEMPT = {
    "attempt_number": 1,
    "status_code": 200,
    **ANSWER,
    "duration_ms": 87,
    "attempted_at": TIME,
}


class DeliveryView(Schema):
    """A delivery, and the answer to its last attempt."""

    id = ma.fields.String(required=True)
    webhook_id = ma.fields.String(required=True)
    account_id = ma.fields.String(required=True)
    event = ma.fields.String(required=True)
    payload = ma.fields.Raw(required=True, metadata={"type": "object"})
    status = ma.fields.String(
        required=True,
        metadata={
            "description": "pending, delivered, retrying or failed. What is pending or retrying"
            " without `next_retry_at` while its webhook is disabled waits until it is enabled."
        },
    )
    attempt_number = ma.fields.Integer(
        required=True, metadata={"description": "How many attempts there were."}
    )
    response_status = ma.fields.Integer(required=True, allow_none=True)
    response_body = ma.fields.String(required=True, allow_none=True)
    error = ma.fields.String(required=True, allow_none=True)
    next_retry_at = fields.Timestamp(required=True, allow_none=True)
    delivered_at = fields.Timestamp(required=True, allow_none=True)
    replay_of = ma.fields.String(required=True, allow_none=True)
    created_at = fields.Timestamp(required=True)


class AttemptView(Schema):
    """One attempt to deliver."""

    attempt_number = ma.fields.Integer(required=True)
    status_code = ma.fields.Integer(required=True, allow_none=True)
    response_body = ma.fields.String(required=True, allow_none=True)
    error = ma.fields.String(required=True, allow_none=True)
    duration_ms = ma.fields.Integer(required=True)
    attempted_at = fields.Timestamp(required=True)


class DeliveryWithAttempts(DeliveryView):
    """A delivery with every attempt, the first one first."""

    attempts = ma.fields.List(ma.fields.Nested(AttemptView), required=True)


class DeliveryPage(Page):
    """A page of deliveries."""

    items = items_field(DeliveryView)


class DeliveryArgs(OffsetArgs):
    """Which deliveries to list."""

    status = ma.fields.String(
        validate=ma.validate.OneOf(STATES),
        metadata={"description": "Only deliveries in this state."},
    )
    event = ma.fields.String(
        validate=ma.validate.OneOf(payload.EVENTS),
        metadata={"description": "Only deliveries of this event."},
    )
    from_date = fields.DateTime(metadata={"description": "Only what was asked for since then."})
    to_date = fields.DateTime(metadata={"description": "Only what was asked for before then."})


class Since(Schema):
    """From when on."""

    since = fields.DateTime(required=True)


class Redelivered(Message):
    """How many deliveries are made again."""

    count = ma.fields.Integer(required=True)


@blueprint.route("/<uuid:webhook_id>/deliveries", methods=["GET"])
@blueprint.arguments(DeliveryArgs, location="query")
@blueprint.response(200, DeliveryPage, example=page_body([DELIVERY], 1, {"skip": 0, "limit": 50}))
@account_admin
def list_deliveries(args: dict[str, Any], webhook_id: str) -> dict[str, Any]:
    """List a webhook's deliveries, newest first.

    A payload is the view of the webhook's maker. It is shown to that user, to superadmins, and to
    admins who may view all records and fields of the collection; what holds personal data to
    members of `pii_access` only. For others `record`, `previous` and `response_body` are null.
    Deliveries are kept for 30 days, and while the payloads of the account's take no more than
    1 GiB: beyond that, the oldest of those that are over go first.
    """
    webhook = service.get(webhook_id, by=principal())
    wanted = {**args, "account_id": webhook.account_id, "webhook_id": webhook.id}
    return page_body(*log.page(wanted, args["skip"], args["limit"], by=principal()), args)


@blueprint.route("/<uuid:webhook_id>/deliveries/<uuid:delivery_id>", methods=["GET"])
@blueprint.response(200, DeliveryWithAttempts, example={**DELIVERY, "attempts": [ATTEMPT]})
@account_admin
def get_delivery(webhook_id: str, delivery_id: str) -> dict[str, Any]:
    """Get a delivery with all its attempts."""
    return log.get(service.get(webhook_id, by=principal()), delivery_id, by=principal())


@blueprint.route("/<uuid:webhook_id>/deliveries/<uuid:delivery_id>/redeliver", methods=["POST"])
@blueprint.response(202, DeliveryWithAttempts, example={**DELIVERY, "attempts": []})
@blueprint.fails(409)
@account_admin
def redeliver(webhook_id: str, delivery_id: str) -> dict[str, Any]:
    """Make a delivery again.

    It gets an id of its own, and names the first one in `X-Service-Replay-Of`. While the webhook
    has the warning `payloads_cut`, it holds ids only. What a former maker viewed, and the
    present one may not, is a 409.
    """
    webhook = service.get(webhook_id, by=principal())
    return log.redeliver(webhook, delivery_id, by=principal())


@blueprint.route("/<uuid:webhook_id>/deliveries/redeliver", methods=["POST"])
@blueprint.arguments(Since, example={"since": TIME})
@blueprint.response(
    202, Redelivered, example={"message": "The deliveries are made again.", "count": 12}
)
@blueprint.fails(409)
@account_admin
def redeliver_failed(body: dict[str, Any], webhook_id: str) -> dict[str, Any]:
    """Make all deliveries again that were asked for since a time, and failed.

    Of a delivery and its repetitions the last one is made again, and none where one of them arrived
    or is still on its way. Tests that failed are deliveries, too.
    """
    principal().require_account_id()
    count = log.redeliver_failed(service.get(webhook_id, by=principal()), body["since"])
    return {"message": "The deliveries are made again.", "count": count}
