"""The delivery log of webhooks (spec 4.7, contract section 8)."""

from __future__ import annotations

import marshmallow as ma

from app import rest
from app.accounts.schemas import ACCOUNT
from app.auth.guard import principal
from app.rest import fields
from app.rest.access import account_admin
from app.rest.blueprint import Blueprint
from app.rest.paging import OffsetArgs, Page, items_field, page_body
from app.rest.schemas import Message, Schema
from app.types import JSONObject
from app.webhooks import log, payload, service
from app.webhooks.models import STATES
from app.webhooks.routes import ANSWER, TIME, WEBHOOK

blueprint = Blueprint(
    "Deliveries of webhooks",
    __name__,
    url_prefix=f"{rest.PREFIX}/webhooks",
    description="Delivery log and redelivery.",
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
    """A delivery with the response to its last attempt."""

    id = ma.fields.String(required=True)
    webhook_id = ma.fields.String(required=True)
    account_id = ma.fields.String(required=True)
    event = ma.fields.String(required=True)
    payload = ma.fields.Raw(required=True, metadata={"type": "object"})
    status = ma.fields.String(
        required=True,
        metadata={
            "description": "pending, delivered, retrying or failed. Without `next_retry_at`, a"
            " pending or retrying delivery waits until its webhook is enabled."
        },
    )
    attempt_number = ma.fields.Integer(
        required=True, metadata={"description": "Number of attempts."}
    )
    response_status = ma.fields.Integer(required=True, allow_none=True)
    response_body = ma.fields.String(required=True, allow_none=True)
    error = ma.fields.String(required=True, allow_none=True)
    next_retry_at = fields.Timestamp(required=True, allow_none=True)
    delivered_at = fields.Timestamp(required=True, allow_none=True)
    replay_of = ma.fields.String(required=True, allow_none=True)
    created_at = fields.Timestamp(required=True)


class AttemptView(Schema):
    """One delivery attempt."""

    attempt_number = ma.fields.Integer(required=True)
    status_code = ma.fields.Integer(required=True, allow_none=True)
    response_body = ma.fields.String(required=True, allow_none=True)
    error = ma.fields.String(required=True, allow_none=True)
    duration_ms = ma.fields.Integer(required=True)
    attempted_at = fields.Timestamp(required=True)


class DeliveryWithAttempts(DeliveryView):
    """A delivery with all attempts, oldest first."""

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
    from_date = fields.DateTime(metadata={"description": "Only deliveries created since then."})
    to_date = fields.DateTime(metadata={"description": "Only deliveries created before then."})


class Since(Schema):
    """The start of a redelivery."""

    since = fields.DateTime(required=True)


class Redelivered(Message):
    """The number of deliveries to send again."""

    count = ma.fields.Integer(required=True)


@blueprint.route("/<uuid:webhook_id>/deliveries", methods=["GET"])
@blueprint.arguments(DeliveryArgs, location="query")
@blueprint.response(200, DeliveryPage, example=page_body([DELIVERY], 1, {"skip": 0, "limit": 50}))
@account_admin
def list_deliveries(args: JSONObject, webhook_id: str) -> JSONObject:
    """List a webhook's deliveries, newest first.

    A payload shows what the webhook's owner may view. It is visible to the owner, to superadmins
    and to admins who may view all records and fields of the collection; payloads with personal
    data only to members of `pii_access`. For others `record`, `previous` and `response_body` are
    null. Deliveries are kept for 30 days, as long as the account's payloads take at most 1 GiB;
    beyond that, the oldest completed ones are deleted first.
    """
    webhook = service.get(webhook_id, by=principal())
    filters = {**args, "account_id": webhook.account_id, "webhook_id": webhook.id}
    return page_body(*log.page(filters, args["skip"], args["limit"], by=principal()), args)


@blueprint.route("/<uuid:webhook_id>/deliveries/<uuid:delivery_id>", methods=["GET"])
@blueprint.response(200, DeliveryWithAttempts, example={**DELIVERY, "attempts": [ATTEMPT]})
@account_admin
def get_delivery(webhook_id: str, delivery_id: str) -> JSONObject:
    """Get a delivery with all attempts."""
    return log.get(service.get(webhook_id, by=principal()), delivery_id, by=principal())


@blueprint.route("/<uuid:webhook_id>/deliveries/<uuid:delivery_id>/redeliver", methods=["POST"])
@blueprint.response(202, DeliveryWithAttempts, example={**DELIVERY, "attempts": []})
@blueprint.fails(409)
@account_admin
def redeliver(webhook_id: str, delivery_id: str) -> JSONObject:
    """Send a delivery again.

    The new delivery has its own id and names the original in `X-Service-Replay-Of`. While the
    webhook has the warning `payloads_cut`, its payload has ids only. Returns 409 if the payload
    shows what a previous owner could view and the current one may not.
    """
    webhook = service.get(webhook_id, by=principal())
    return log.redeliver(webhook, delivery_id, by=principal())


@blueprint.route("/<uuid:webhook_id>/deliveries/redeliver", methods=["POST"])
@blueprint.arguments(Since, example={"since": TIME})
@blueprint.response(
    202, Redelivered, example={"message": "The failed deliveries are queued again.", "count": 12}
)
@blueprint.fails(409)
@account_admin
def redeliver_failed(body: JSONObject, webhook_id: str) -> JSONObject:
    """Send all deliveries again that were created since a time and failed.

    Of a delivery and its replays only the last one is sent again, and none if any of them was
    delivered or is pending. Failed tests are included.
    """
    principal().require_account_id()
    count = log.redeliver_failed(service.get(webhook_id, by=principal()), body["since"])
    return {"message": "The failed deliveries are queued again.", "count": count}
