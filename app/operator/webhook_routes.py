"""`/operator/webhooks`: receivers of events of all accounts."""

from __future__ import annotations

import marshmallow as ma
from flask import Response

from app import web
from app.auth.guard import principal
from app.operator import types, webhooks
from app.operator.routes import EVENT, OPERATOR_EVENTS
from app.operator.types import EventType
from app.outbound.address_policy import LONGEST_URL
from app.types import JSONObject
from app.web import fields
from app.web.blueprint import Blueprint
from app.web.fields import doc
from app.web.paging import OffsetArgs, PageArgs, page_body, page_of
from app.web.schemas import Schema, View, example
from app.webhooks import log, payload, resend, service
from app.webhooks.delivery_routes import ATTEMPT, AttemptView, DeliveryView
from app.webhooks.log import DeliveryFilter
from app.webhooks.models import DISABLED_REASONS, STATES, Webhook
from app.webhooks.routes import SECRET, TEST, RotatedSecret, TestResult
from app.webhooks.service import Secret

blueprint = Blueprint(
    "Operator webhooks",
    __name__,
    url_prefix=f"{web.PREFIX}/operator/webhooks",
    description="Receivers of events of all accounts. For superadmins.",
)

NEW = {"url": "https://billing.example.com/atrium", "types": ["account.*", "plan.changed"]}
EVENTS = (*(one.value for one in EventType), payload.TEST_EVENT)


@example(
    url="https://billing.example.com/atrium",
    types=["account.*", "plan.changed"],
    collections=[],
    is_active=True,
)
class OperatorWebhookView(View):
    """An operator's webhook without its secret."""

    id = fields.Id()
    url = ma.fields.String(metadata=fields.URI)
    types = ma.fields.List(ma.fields.String())
    collections = ma.fields.Function(
        lambda webhook: webhook.collections or [],
        metadata={"type": "array", "items": {"type": "string"}},
    )
    is_active = ma.fields.Boolean(attribute="enabled")
    failing_since = fields.Timestamp(allow_none=True)
    disabled_at = fields.Timestamp(allow_none=True, **doc("When the service disabled it."))
    disabled_reason = ma.fields.String(
        allow_none=True, validate=ma.validate.OneOf(DISABLED_REASONS)
    )
    created_by = fields.Id(allow_none=True, **doc("The owner: creator or last take-over."))
    paused_at = fields.Timestamp(
        allow_none=True,
        **doc("Since when it waits for a take-over, because its owner is no superadmin any more."),
    )
    created_at = fields.Timestamp()
    updated_at = fields.Timestamp()


class CreatedOperatorWebhook(OperatorWebhookView):
    """A new webhook with its secret, which is shown only once."""

    secret = ma.fields.String()
    signing_secret = ma.fields.String(**doc("The secret in the format of Standard Webhooks."))


class ChangedOperatorWebhook(Schema):
    """The properties of an operator's webhook."""

    url = fields.Text(shortest=1, longest=LONGEST_URL, metadata=fields.URI)
    types = ma.fields.List(
        fields.DocumentedChoice(types.WRITTEN, longest=100),
        validate=ma.validate.Length(1, len(types.WRITTEN)),
        **doc("The types of events that it is sent; `user.*` for all of a kind."),
    )
    collections = ma.fields.List(
        fields.Text(shortest=1, longest=100),
        validate=ma.validate.Length(max=200),
        **doc("The collections whose changes of records are events; needed with `records.*`."),
    )
    is_active = fields.StrictBoolean()


class NewOperatorWebhook(ChangedOperatorWebhook):
    """A new webhook of the operator."""

    requires = ("url", "types")


class OperatorWebhookArgs(PageArgs):
    default_limit = 100


@example(payload=EVENT, event="user.created", status="delivered", response_status=200)
class OperatorDeliveryView(DeliveryView):
    """A delivery of an event with the response to its last attempt."""

    event = fields.Choice(EVENTS)


class OperatorDelivery(OperatorDeliveryView):
    """A delivery with all attempts, oldest first."""

    attempts = ma.fields.List(ma.fields.Nested(AttemptView))


class OperatorDeliveryArgs(OffsetArgs):
    status = fields.Choice(STATES, **doc("Only deliveries in this state."))
    event = fields.Choice(EVENTS, **doc("Only deliveries of events of this type."))


@blueprint.route("", methods=["GET"])
@blueprint.arguments(OperatorWebhookArgs, location="query")
@blueprint.response(200, page_of(OperatorWebhookView))
@OPERATOR_EVENTS
def list_operator_webhooks(args: JSONObject) -> JSONObject:
    """List the operator's webhooks, oldest first."""
    return page_body(*webhooks.page(args["skip"], args["limit"]), args)


@blueprint.route("", methods=["POST"])
@blueprint.arguments(NewOperatorWebhook, example=NEW)
@blueprint.response(201, CreatedOperatorWebhook, example={**SECRET})
@blueprint.fails(409)
@OPERATOR_EVENTS(shows_secret=True)
def create_operator_webhook(body: JSONObject) -> Secret:
    """Create a webhook that is sent events of all accounts.

    The secret is returned only once. Each event is a signed JSON POST of what
    `GET /operator/events` lists, retried and signed like deliveries of accounts' webhooks. Events
    of one account are sent one after the other, in the order of commits; an event that fails for
    good lets the next one go. The event's `id` stays the same when it is sent again. There may be
    20 such webhooks (409 `limit_reached`).
    """
    return webhooks.create(body, by=principal())


@blueprint.route("/<uuid:webhook_id>", methods=["GET"])
@blueprint.response(200, OperatorWebhookView)
@OPERATOR_EVENTS
def get_operator_webhook(webhook_id: str) -> Webhook:
    """Get an operator's webhook without its secret."""
    return webhooks.get(webhook_id, by=principal())


@blueprint.route("/<uuid:webhook_id>", methods=["PUT", "PATCH"])
@blueprint.arguments(ChangedOperatorWebhook, example={"is_active": False})
@blueprint.response(200, OperatorWebhookView)
@OPERATOR_EVENTS
def update_operator_webhook(body: JSONObject, webhook_id: str) -> Webhook:
    """Change an operator's webhook; omitted properties keep their values.

    One that is not active is sent no events; what waits is sent once it is active again.
    """
    return webhooks.change(webhook_id, body, by=principal())


@blueprint.route("/<uuid:webhook_id>", methods=["DELETE"])
@blueprint.response(204)
@OPERATOR_EVENTS
def delete_operator_webhook(webhook_id: str) -> Response:
    """Delete an operator's webhook with its deliveries."""
    webhooks.delete(webhook_id, by=principal())
    return Response(status=204)


@blueprint.route("/<uuid:webhook_id>/test", methods=["POST"])
@blueprint.response(200, TestResult, example=TEST)
@blueprint.fails(429)
@OPERATOR_EVENTS
def test_operator_webhook(webhook_id: str) -> JSONObject:
    """Send a `webhook.test` to the webhook now, and return the response.

    A receiver that fails is a 200 with `success: false`. The test is in the delivery log and is
    not retried. While too many tests run, it is a 429.
    """
    result = webhooks.send_test(webhook_id, by=principal())
    names = ("status_code", "response_body", "error", "duration_ms")
    return {"success": result.delivered, **{name: getattr(result, name) for name in names}}


@blueprint.route("/<uuid:webhook_id>/take-over", methods=["POST"])
@blueprint.response(200, OperatorWebhookView)
@OPERATOR_EVENTS(api_keys=False, operator=None)
def take_over_operator_webhook(webhook_id: str) -> Webhook:
    """Become the owner of an operator's webhook; a paused one goes on."""
    return service.take_over(webhook_id, by=principal(), operators=True)


@blueprint.route("/<uuid:webhook_id>/rotate-secret", methods=["POST"])
@blueprint.response(200, RotatedSecret, example=SECRET)
@OPERATOR_EVENTS(shows_secret=True)
def rotate_operator_webhook_secret(webhook_id: str) -> Secret:
    """Rotate the secret of an operator's webhook; the previous one also signs for 24 hours."""
    return service.rotate_secret(webhook_id, by=principal(), operators=True)


@blueprint.route("/<uuid:webhook_id>/deliveries", methods=["GET"])
@blueprint.arguments(OperatorDeliveryArgs, location="query")
@blueprint.response(200, page_of(OperatorDeliveryView))
@OPERATOR_EVENTS
def list_operator_deliveries(args: JSONObject, webhook_id: str) -> JSONObject:
    """List the deliveries of an operator's webhook, newest first; kept for 30 days."""
    webhook = webhooks.get(webhook_id, by=principal())
    filters = {"status": args.get("status"), "event": args.get("event")}
    where = DeliveryFilter(webhook.account_id, webhook.id, **filters)
    return page_body(*log.page(where, args["skip"], args["limit"], by=principal()), args)


@blueprint.route("/<uuid:webhook_id>/deliveries/<uuid:delivery_id>", methods=["GET"])
@blueprint.response(200, OperatorDelivery, example={"attempts": [ATTEMPT]})
@OPERATOR_EVENTS
def get_operator_delivery(webhook_id: str, delivery_id: str) -> log.DeliveryWithAttempts:
    """Get a delivery of an operator's webhook with all attempts, oldest first."""
    webhook = webhooks.get(webhook_id, by=principal())
    return log.get(webhook, delivery_id, by=principal())


@blueprint.route("/<uuid:webhook_id>/deliveries/<uuid:delivery_id>/redeliver", methods=["POST"])
@blueprint.response(202, OperatorDelivery, example={"attempts": []})
@blueprint.fails(409)
@OPERATOR_EVENTS
def redeliver_operator_delivery(webhook_id: str, delivery_id: str) -> log.DeliveryWithAttempts:
    """Send a delivery of an operator's webhook again.

    The new delivery has its own id and names the original in `X-Service-Replay-Of`; the event's
    id is the same. It is sent at once, beside the order of the others.
    """
    webhook = webhooks.get(webhook_id, by=principal())
    return resend.redeliver(webhook, delivery_id, by=principal())
