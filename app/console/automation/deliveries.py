"""The delivery log: payloads, attempts and redelivery."""

from __future__ import annotations

from typing import Any

import orjson
from flask import redirect, render_template, request, url_for
from werkzeug.wrappers import Response as BaseResponse

from app import clock
from app.auth.principal import Principal
from app.console.automation import webhooks
from app.console.automation.webhooks import ACCOUNT, WEBHOOK
from app.console.shell import forms, guard, lists, resubmit, scopes
from app.console.shell.blueprint import blueprint
from app.console.shell.forms import Page, redirect_with_notice
from app.errors import AppError, InvalidValues, NotFound, problem
from app.rest.access import public
from app.webhooks import log, payload, service
from app.webhooks.models import PENDING, RETRYING, STATES

LOG = f"{ACCOUNT}/deliveries"
DELIVERY = f"{WEBHOOK}/deliveries/<uuid:delivery_id>"
MAX_WEBHOOKS = 1000
DELIVERIES = "console.show_deliveries"
MAX_TIME_LENGTH, MAX_PAYLOAD_LENGTH = 40, 100_000


@blueprint.get(LOG)
@public
@guard.admins_only
def show_deliveries(account_id: str) -> str:
    """The matching deliveries, newest first."""
    scope = scopes.account_scope(account_id)
    hooks, _ = service.page(0, MAX_WEBHOOKS, by=scope.by)
    labels = {webhook.id: f"{webhook.collection}: {webhook.url}" for webhook in hooks}
    choices: lists.Choices = {"webhook": labels, "status": STATES, "event": payload.EVENTS}
    listing = lists.from_request(
        "console.show_deliveries", choices, None, lists.TIME_FILTERS, **scope.url_args
    )
    if not listing.errors:
        listing.with_page(_page(listing, scope.by))
    return render_template(
        "console/webhooks/deliveries.html",
        scope=scope,
        listing=listing,
        hooks={webhook.id: webhook for webhook in hooks},
        warnings=service.payload_warnings(scope.account.id),
    )


def _page(listing: lists.Listing, by: Principal) -> tuple[list[Any], int]:
    filters = {**listing.filter_values, "webhook_id": listing.filters.get("webhook")}
    if filters.keys() & {"status", "event"}:  # not indexed
        filters["after"] = listing.scan_newest(lambda newer: log.place(newer, by=by))
    return log.page(filters, listing.skip, lists.PAGE_SIZE, by=by, max_total=listing.count_limit)


@blueprint.get(DELIVERY)
@public
@guard.admins_only
def show_delivery(account_id: str, webhook_id: str, delivery_id: str) -> str:
    """One delivery with its payload and all attempts."""
    scope = scopes.account_scope(account_id)
    webhook = service.get(webhook_id, by=scope.by)
    delivery = log.get(webhook, delivery_id, by=scope.by)
    return render_template(
        "console/webhooks/delivery.html",
        scope=scope,
        webhook=webhook,
        delivery=delivery,
        payload=_pretty(delivery["payload"]),
    )


@blueprint.post(f"{DELIVERY}/redeliver")
@public
@guard.admins_only
def redeliver(account_id: str, webhook_id: str, delivery_id: str) -> Page | BaseResponse:
    """Send a delivery again, and redirect to the new one."""
    scope = scopes.account_scope(account_id)
    try:
        webhook = service.get(webhook_id, by=scope.by)
        delivery = log.redeliver(webhook, delivery_id, by=scope.by)
    except AppError as error:
        return webhooks.page_with_error(scope, webhook_id, error)
    url_args = {**scope.url_args, "webhook_id": webhook_id, "delivery_id": delivery["id"]}
    return redirect_with_notice(
        "The delivery is queued again as this new one.", "console.show_delivery", **url_args
    )


@blueprint.post(f"{WEBHOOK}/redeliver")
@public
@guard.admins_only
@resubmit.renders_form
def redeliver_failed(account_id: str, webhook_id: str) -> Page | BaseResponse:
    """Send all deliveries again that failed since a time."""
    scope, form = scopes.account_scope(account_id), forms.submitted("since")
    try:
        since = form.validated(("since",), since=MAX_TIME_LENGTH)["since"]
        begin, now = _parse_time("since", since), clock.now()
        count = log.redeliver_failed(service.get(webhook_id, by=scope.by), begin, now)
    except AppError as error:
        return webhooks.page_with_error(scope, webhook_id, error, form)
    if not count:
        return redirect_with_notice(
            "No delivery has failed since then.", DELIVERIES, **scope.url_args, webhook=webhook_id
        )
    period = {"since": clock.iso(begin), "until": clock.iso(now)}
    url_args = {**scope.url_args, "webhook_id": webhook_id, **period}
    return redirect(url_for("console.show_sent_again", **url_args), 303)


@blueprint.get(f"{WEBHOOK}/sent-again")
@public
@guard.admins_only
def show_sent_again(account_id: str, webhook_id: str) -> str:
    """The progress of a redelivery."""
    scope, times = (
        scopes.account_scope(account_id),
        (request.args.get(n, "") for n in ("since", "until")),
    )
    webhook = service.get(webhook_id, by=scope.by)
    try:
        since, until = (clock.parse(text) if text else clock.now() for text in times)
    except ValueError:
        raise NotFound from None
    states = log.redelivery_counts(webhook, since, until)
    context = {"scope": scope, "webhook": webhook, "until": until, "states": states}
    in_progress = states[PENDING] + states[RETRYING]
    return render_template("console/webhooks/sent_again.html", **context, going=in_progress)


def _parse_time(name: str, text: str) -> Any:
    try:
        return clock.parse(text)
    except ValueError:
        message = "Enter a date and time, such as 2026-01-31T10:00 (UTC)."
        raise InvalidValues([problem(name, "invalid_datetime", message)]) from None


def _pretty(value: object) -> str:
    # What is stored is passed through unparsed.
    plain = orjson.loads(orjson.dumps(value))
    text = orjson.dumps(plain, option=orjson.OPT_INDENT_2).decode()
    return text if len(text) <= MAX_PAYLOAD_LENGTH else f"{text[:MAX_PAYLOAD_LENGTH]}…"
