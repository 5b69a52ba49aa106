"""Webhooks."""

from __future__ import annotations

import marshmallow as ma
from flask import Response

from app import web
from app.auth.guard import principal
from app.collections.schemas import NAME_PATTERN
from app.types import JSONObject
from app.web import fields
from app.web.access import account_admin
from app.web.blueprint import Blueprint
from app.web.fields import doc
from app.web.paging import PageArgs, page_body, page_of
from app.web.schemas import Problem, Schema, View, example
from app.webhooks import headers, service
from app.webhooks.models import DISABLED_REASONS, OPERATIONS, Webhook
from app.webhooks.service import Secret

blueprint = Blueprint(
    "Webhooks",
    __name__,
    url_prefix=f"{web.PREFIX}/webhooks",
    description="Receivers of record changes.",
)

TIME = "2026-11-20T12:00:00.123456Z"
TEXT = "4f7d2a" + "0" * 58
SECRET = {"secret": TEXT, "signing_secret": "whsec_NGY3ZDJhMDA..."}
NEW = {
    "url": "https://hooks.example.com/atrium",
    "collection": "posts",
    "events": ["create", "update"],
}
ANSWER = {"response_body": "ok", "error": None}
TEST = {"success": True, "status_code": 200, **ANSWER, "duration_ms": 87}


def _headers() -> object:
    return ma.fields.Dict(
        keys=fields.Text(longest=200),
        values=fields.Text(longest=5000),
        allow_none=True,
        **doc(
            "Sent with every delivery, in addition to the service's headers.",
            maxProperties=service.MAX_HEADERS,
        ),
    )


OWNER = (
    "The owner: you, or a service user of the account, which stays the owner when others change"
    " what is sent. One in `pii_access` is named by its members only (403)."
)
MAKER = "If false, payloads show what any admin may view, masked, until an admin takes it over."
WARNINGS = (
    "Likely mistakes, such as a missing collection; `payloads_cut` while payloads have ids only"
    " because the account's deliveries exceed the limit."
)
PROBLEM = {"$ref": f"#/components/schemas/{Problem.__name__}"}


@example(
    url="https://hooks.example.com/atrium",
    events=["create", "update"],
    headers={"Authorization": "***"},
    has_active_maker=True,
)
class WebhookView(View):
    """A webhook without its secret."""

    id = fields.Id()
    account_id = fields.Id()
    url = ma.fields.String(metadata=fields.URI)
    collection = ma.fields.String()
    events = ma.fields.List(fields.Choice(OPERATIONS))
    filter = ma.fields.String(allow_none=True)
    headers = ma.fields.Function(
        lambda webhook: headers.masked(webhook.headers),
        metadata={
            "type": ["object", "null"],
            "additionalProperties": {"type": "string"},
            "description": "Values are shown as `***`; sending `***` keeps the stored value.",
        },
    )
    enabled = ma.fields.Boolean()
    include_pii = ma.fields.Boolean()
    failing_since = fields.Timestamp(
        allow_none=True, **doc("The time since which every attempt has failed.")
    )
    disabled_at = fields.Timestamp(allow_none=True, **doc("When the service disabled it."))
    disabled_reason = ma.fields.String(
        allow_none=True,
        validate=ma.validate.OneOf(DISABLED_REASONS),
        **doc(
            "Why the service disabled it: five days of failures (`failing`), or a"
            " response with 410 (`gone`)."
        ),
    )
    created_at = fields.Timestamp()
    updated_at = fields.Timestamp()
    created_by = fields.Id(
        allow_none=True, **doc("The owner (creator or last take-over): payloads show their view.")
    )
    owner_id = fields.Id(allow_none=True, **doc("The same as `created_by`."))
    has_active_maker = ma.fields.Function(
        service.has_active_maker, metadata={"type": "boolean", "description": MAKER}
    )
    paused_at = fields.Timestamp(
        allow_none=True,
        **doc(
            "Since when the webhook is paused, because its owner is no admin any more: deliveries"
            " are stored and wait, up to 30 days, until an admin takes it over."
        ),
    )
    warnings = ma.fields.Function(
        service.warnings, metadata={"type": "array", "items": PROBLEM, "description": WARNINGS}
    )


class CreatedWebhook(WebhookView):
    """A new webhook with its secret, which is shown only once."""

    secret = ma.fields.String()
    signing_secret = ma.fields.String(**doc("The secret in the format of Standard Webhooks."))


class WebhookArgs(PageArgs):
    default_limit = 100


class ChangedWebhook(Schema):
    url = fields.Text(shortest=1, longest=2048, metadata=fields.URI)
    collection = fields.Text(shortest=1, longest=100, metadata=NAME_PATTERN)
    events = ma.fields.List(
        fields.Choice(OPERATIONS),
        validate=ma.validate.Length(1, 10),
        **doc("Any of create, update and delete."),
    )
    secret = fields.Text(
        longest=256, allow_none=True, **doc("The signing secret; generated if absent.")
    )
    filter = fields.Text(
        longest=2000, allow_none=True, **doc("An expression; only matching changes are sent.")
    )
    headers = _headers()
    enabled = fields.StrictBoolean()
    include_pii = fields.StrictBoolean(
        **doc("Send personal data unmasked; for members of pii_access only.")
    )

    owner_id = fields.GivenId(**doc(OWNER))

    @ma.post_load
    def plain(self, body: JSONObject, **options: object) -> JSONObject:
        """Sort the events and remove duplicates."""
        if "events" in body:
            body["events"] = [name for name in OPERATIONS if name in body["events"]]
        return body


class NewWebhook(ChangedWebhook):
    requires = ("url", "collection", "events")


class RotatedSecret(View):
    """A new secret, which is shown only once."""

    id = fields.Id()
    secret = ma.fields.String()
    signing_secret = ma.fields.String()
    previous_valid_until = fields.Timestamp()


class TestResult(View):
    success = ma.fields.Boolean()
    status_code = ma.fields.Integer(allow_none=True)
    response_body = ma.fields.String(allow_none=True)
    error = ma.fields.String(allow_none=True)
    duration_ms = ma.fields.Integer()


@blueprint.route("", methods=["GET"])
@blueprint.arguments(WebhookArgs, location="query")
@blueprint.response(200, page_of(WebhookView))
@account_admin(operator="webhooks")
def list_webhooks(args: JSONObject) -> JSONObject:
    """List the webhooks of the own account, oldest first.

    Includes disabled ones, without secrets. With `X-Account-ID: *` superadmins get those of all
    accounts.
    """
    return page_body(*service.page(args["skip"], args["limit"], by=principal()), args)


@blueprint.route("", methods=["POST"])
@blueprint.arguments(NewWebhook, example=NEW)
@blueprint.response(201, CreatedWebhook, example={**SECRET})
@blueprint.fails(409)
@account_admin(shows_secret=True, operator="webhooks")
def create_webhook(body: JSONObject) -> Secret:
    """Create a webhook.

    The secret is returned only once. Each matching record change is sent to the URL as a signed
    JSON POST and retried until the receiver responds with 2xx: after 1 minute, 5 minutes,
    30 minutes, 2 hours and 12 hours. A delivery may arrive more than once; `X-Service-Delivery`
    identifies it. In production the URL must be https and public. An account may have 20 webhooks
    (409 `limit_reached`).

    The payload shows what the webhook's owner may view at the time of the change: view rule, field
    list and masks of that user apply, and a change is not sent if the owner may view neither the
    record nor its previous version. Personal data is masked unless the webhook has `include_pii`
    and its owner is a member of `pii_access`. Payloads over 256 KiB, or beyond 16 MiB in one
    request, have ids only and `truncated: true`. The same applies to new payloads while the
    account's pending deliveries take more than 1 GiB; `warnings` reports it. The order of
    deliveries is not guaranteed: order them by `webhook-timestamp` and the record's `updated_at`.
    """
    return service.create(body, by=principal())


@blueprint.route("/<uuid:webhook_id>", methods=["GET"])
@blueprint.response(200, WebhookView)
@account_admin(operator="webhooks")
def get_webhook(webhook_id: str) -> Webhook:
    """Get a webhook without its secret.

    Only creating and rotating return the secret. The deliveries have a list of their own
    (`/deliveries`).
    """
    return service.get(webhook_id, by=principal())


@blueprint.route("/<uuid:webhook_id>", methods=["PUT", "PATCH"])
@blueprint.arguments(ChangedWebhook, example={"enabled": False})
@blueprint.response(200, WebhookView)
@account_admin(operator="webhooks")
def update_webhook(body: JSONObject, webhook_id: str) -> Webhook:
    """Change a webhook; omitted properties keep their values.

    A new secret starts a rotation. A disabled webhook receives no changes; its pending deliveries
    keep their status without a `next_retry_at` and are sent once it is enabled again, within the 30
    days for which deliveries are kept.
    """
    return service.change(webhook_id, body, by=principal())


@blueprint.route("/<uuid:webhook_id>", methods=["DELETE"])
@blueprint.response(204)
@account_admin(operator="webhooks")
def delete_webhook(webhook_id: str) -> Response:
    """Delete a webhook with its deliveries.

    Pending deliveries are not sent any more; a background job deletes them and the log. This cannot
    be undone.
    """
    service.delete(webhook_id, by=principal())
    return Response(status=204)


@blueprint.route("/<uuid:webhook_id>/test", methods=["POST"])
@blueprint.response(200, TestResult, example=TEST)
@blueprint.fails(429)
@account_admin(operator="webhooks")
def test_webhook(webhook_id: str) -> JSONObject:
    """Send a `webhook.test` to the webhook now, and return the response.

    Also works for a disabled webhook. A receiver that fails is a 200 with `success: false`. The
    test is in the delivery log and is not retried. While too many tests run, it is a 429.
    """
    result = service.test(webhook_id, by=principal())
    return {
        "success": result.delivered,
        "status_code": result.status_code,
        "response_body": result.response_body,
        "error": result.error,
        "duration_ms": result.duration_ms,
    }


@blueprint.route("/<uuid:webhook_id>/take-over", methods=["POST"])
@blueprint.response(200, WebhookView)
@account_admin(api_keys=False)
def take_over_webhook(webhook_id: str) -> Webhook:
    """Become the owner of a webhook: its payloads show what the caller may view from now on.

    A paused webhook goes on. Pending deliveries are sent only if the caller may view all records
    and fields of the collection.
    """
    return service.take_over(webhook_id, by=principal())


@blueprint.route("/<uuid:webhook_id>/rotate-secret", methods=["POST"])
@blueprint.response(200, RotatedSecret, example=SECRET)
@account_admin(shows_secret=True, operator="webhooks")
def rotate_webhook_secret(webhook_id: str) -> Secret:
    """Rotate a webhook's secret.

    For 24 hours the previous secret signs as well: `webhook-signature` has two values, and
    `X-Service-Signature-Previous` uses the previous one.
    """
    return service.rotate_secret(webhook_id, by=principal())
