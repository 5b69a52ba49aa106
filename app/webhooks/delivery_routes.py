"""The delivery log of webhooks."""

from __future__ import annotations

import marshmallow as ma

from app import clock, web
from app.auth.guard import principal
from app.types import JSONObject
from app.web import fields
from app.web.access import account_admin
from app.web.blueprint import Blueprint
from app.web.examples import UUID
from app.web.fields import doc
from app.web.paging import OffsetArgs, page_body, page_of
from app.web.schemas import Message, Schema, View, example
from app.webhooks import log, payload, redaction, resend, service
from app.webhooks.log import DeliveryFilter
from app.webhooks.models import STATES, DeliveryState
from app.webhooks.resend import Selection
from app.webhooks.routes import ANSWER, TIME

blueprint = Blueprint(
    "Deliveries of webhooks",
    __name__,
    url_prefix=f"{web.PREFIX}/webhooks",
    description="Delivery log and redelivery.",
)

PAYLOAD = {
    "event": "records.create",
    "collection": "posts",
    "record": {"id": UUID, "title": "Hello"},
    "timestamp": TIME,
    "webhook_id": UUID,
    "account_id": UUID,
}
ATTEMPT = {
    "attempt_number": 1,
    "status_code": 200,
    **ANSWER,
    "duration_ms": 87,
    "attempted_at": TIME,
    "request": {
        "method": "POST",
        "url": "https://hooks.example.com/atrium",
        "headers": {
            "Authorization": "***",
            "Content-Type": "application/json",
            "X-Service-Signature": f"sha256={'5e' * 32}",
        },
    },
}
RESENT = "The deliveries are queued again."


@example(
    payload=PAYLOAD, status="delivered", response_status=200, response_body="ok", delivered_at=TIME
)
class DeliveryView(View):
    """A delivery with the response to its last attempt."""

    id = fields.Id()
    webhook_id = fields.Id()
    account_id = fields.Id()
    event = fields.Choice(payload.EVENTS)
    payload = ma.fields.Raw(metadata={"type": "object", "additionalProperties": True})
    status = fields.Choice(
        STATES,
        **doc(
            "Without `next_retry_at`, a pending or retrying delivery waits until its"
            " webhook is enabled."
        ),
    )
    attempt_number = ma.fields.Integer(**doc("Number of attempts."))
    response_status = ma.fields.Integer(allow_none=True)
    response_body = ma.fields.String(allow_none=True)
    error = ma.fields.String(allow_none=True)
    next_retry_at = fields.Timestamp(allow_none=True)
    delivered_at = fields.Timestamp(allow_none=True)
    replay_of = fields.Id(allow_none=True)
    requested_by = fields.Id(
        allow_none=True, **doc("The user who had it sent again, the last one of several.")
    )
    created_at = fields.Timestamp()


@example(
    response_body="ok",
    request={
        "method": "POST",
        "url": "https://hooks.example.com/atrium",
        "headers": {
            "Authorization": "***",
            "Content-Type": "application/json",
            "X-Service-Signature": f"sha256={'5e' * 32}",
        },
    },
)
class AttemptView(View):
    attempt_number = ma.fields.Integer()
    status_code = ma.fields.Integer(allow_none=True)
    response_body = ma.fields.String(allow_none=True)
    error = ma.fields.String(allow_none=True)
    duration_ms = ma.fields.Integer()
    attempted_at = fields.Timestamp()
    request = ma.fields.Dict(
        allow_none=True,
        **doc(
            "The request as sent: method, url and headers. Values of your own"
            " headers are shown as `***`; signatures are left out where the payload is hidden."
            " Null if nothing was sent, or before this was recorded."
        ),
    )


class DeliveryWithAttempts(DeliveryView):
    """A delivery with all attempts, oldest first."""

    attempts = ma.fields.List(ma.fields.Nested(AttemptView))


class DeliveryArgs(OffsetArgs):
    status = fields.Choice(STATES, **doc("Only deliveries in this state."))
    event = fields.Choice(payload.EVENTS, **doc("Only deliveries of this event."))
    record_id = fields.GivenId(
        longest=100, **doc("Only deliveries about this record, as far as you may see them.")
    )
    from_date = fields.DateTime(**doc("Only deliveries created since then."))
    to_date = fields.DateTime(**doc("Only deliveries created before then."))


class DeliverySelection(Schema):
    """What to send again: undelivered deliveries by `since` and filters, or any by `ids`."""

    since = fields.DateTime(**doc("Those created since then."))
    until = fields.DateTime(**doc("Those created until then; now by default."))
    status = fields.Choice((DeliveryState.FAILED, DeliveryState.RETRYING))
    event = fields.Choice(payload.EVENTS)
    record_id = fields.GivenId(longest=100)
    ids = ma.fields.List(
        fields.Text(longest=100), validate=ma.validate.Length(min=1, max=resend.MAX_SELECTED)
    )

    @ma.validates_schema
    def _validate_combination(self, values: JSONObject, **_: object) -> None:
        if "ids" not in values and "since" not in values:
            raise ma.ValidationError("Required, unless there are ids.", "since")
        if "ids" in values and len(values) > 1:
            raise ma.ValidationError("Cannot be combined with filters.", "ids")


class Redelivered(Message):
    """The number of deliveries to send again."""

    count = ma.fields.Integer()


@blueprint.route("/<uuid:webhook_id>/deliveries", methods=["GET"])
@blueprint.arguments(DeliveryArgs, location="query")
@blueprint.response(200, page_of(DeliveryView))
@account_admin(operator="webhooks")
def list_deliveries(args: JSONObject, webhook_id: str) -> JSONObject:
    """List a webhook's deliveries, newest first.

    A payload shows what the webhook's owner may view. It is visible to the owner, to superadmins
    and to admins who may view all records and fields of the collection; payloads with personal
    data only to members of `pii_access`. For others `record`, `previous` and `response_body` are
    null. Deliveries are kept for 30 days, as long as the account's payloads take at most 1 GiB;
    beyond that, the oldest completed ones are deleted first.
    """
    webhook = service.get(webhook_id, by=principal())
    where = DeliveryFilter(
        account_id=webhook.account_id,
        webhook_id=webhook.id,
        record_id=args.get("record_id"),
        status=args.get("status"),
        event=args.get("event"),
        from_date=args.get("from_date"),
        to_date=args.get("to_date"),
    )
    return page_body(*log.page(where, args["skip"], args["limit"], by=principal()), args)


@blueprint.route("/<uuid:webhook_id>/deliveries/<uuid:delivery_id>", methods=["GET"])
@blueprint.response(200, DeliveryWithAttempts, example={"attempts": [ATTEMPT]})
@account_admin(operator="webhooks")
def get_delivery(webhook_id: str, delivery_id: str) -> log.DeliveryWithAttempts:
    """Get a delivery with all attempts.

    Attempts are ordered oldest first. What is hidden in the list is hidden here, too.
    """
    return log.get(service.get(webhook_id, by=principal()), delivery_id, by=principal())


@blueprint.route("/<uuid:webhook_id>/deliveries/<uuid:delivery_id>/redeliver", methods=["POST"])
@blueprint.response(202, DeliveryWithAttempts, example={"attempts": []})
@blueprint.fails(409)
@account_admin(operator="webhooks")
def redeliver_delivery(webhook_id: str, delivery_id: str) -> log.DeliveryWithAttempts:
    """Send a delivery again.

    The new delivery has its own id and names the original in `X-Service-Replay-Of`. While the
    webhook has the warning `payloads_cut`, its payload has ids only. A delivery that waits for a
    retry keeps its id and is retried at once. Returns 409 while it is being sent, and if the
    payload shows what a previous owner could view and the current one may not.
    """
    webhook = service.get(webhook_id, by=principal())
    return resend.redeliver(webhook, delivery_id, by=principal())


@blueprint.route("/<uuid:webhook_id>/deliveries/redeliver", methods=["POST"])
@blueprint.arguments(DeliverySelection, example={"since": TIME})
@blueprint.response(202, Redelivered, example={"message": RESENT, "count": 12})
@blueprint.fails(409)
@account_admin(operator="webhooks")
def redeliver_deliveries(body: JSONObject, webhook_id: str) -> JSONObject:
    """Send deliveries again: all that did not arrive since a time, or up to 100 by `ids`.

    Failed deliveries, tests included, are copied. Of a delivery and its replays only the last one
    is sent again, and none if any of them was delivered or is under way. Deliveries that wait for a
    retry keep their ids and are retried at once, which uses one of their retries. `ids` may name
    delivered ones too. Up to 20 such requests of an account wait at a time (409 beyond).
    """
    principal().require_account_id()
    webhook = service.get(webhook_id, by=principal())
    if "ids" in body:
        ids = [id.lower() for id in body["ids"]]
        count = resend.resend_selected(webhook, ids, by=principal())
    else:
        visible, record_id = None, body.get("record_id")
        if record_id:
            visible = redaction.Reader(principal()).visible_ids(webhook.account_id, record_id)
        until, filters = body.get("until", clock.now()), (body.get("event"), body.get("status"))
        by = principal().user_id
        selection = Selection(body["since"], until, *filters, visible, by=by)
        count = resend.resend_undelivered(webhook, selection)
    return {"message": RESENT, "count": count}
