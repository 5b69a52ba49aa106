"""The delivery log of an account's webhooks: what was sent, what came back, sending it again."""

from __future__ import annotations

from typing import Any

import orjson
from flask import redirect, render_template, request, url_for
from werkzeug.wrappers import Response as BaseResponse

from app import clock
from app.auth.principal import Principal
from app.console.automation import webhooks
from app.console.automation.webhooks import ACCOUNT, ONE
from app.console.shell import forms, guard, lists, resubmit, scopes
from app.console.shell.blueprint import blueprint
from app.console.shell.forms import Page, told
from app.errors import AppError, InvalidValues, NotFound, problem
from app.rest.access import public
from app.webhooks import log, payload, service
from app.webhooks.models import PENDING, RETRYING, STATES

LOG = f"{ACCOUNT}/deliveries"
DELIVERY = f"{ONE}/deliveries/<uuid:delivery_id>"
MOST_WEBHOOKS = 1000
DELIVERIES = "console.show_deliveries"
LONGEST_TIME, LONGEST_PAYLOAD = 40, 100_000


@blueprint.get(LOG)
@public
@guard.for_admins
def show_deliveries(account_id: str) -> str:
    """The deliveries that match, the newest first."""
    place = scopes.found(account_id)
    hooks, _ = service.page(0, MOST_WEBHOOKS, by=place.by)
    named = {one.id: f"{one.collection}: {one.url}" for one in hooks}
    choices: lists.Choices = {"webhook": named, "status": STATES, "event": payload.EVENTS}
    listing = lists.asked_for("console.show_deliveries", choices, None, lists.TIMES, **place.at)
    if not listing.errors:
        listing.holding(_found(listing, place.by))
    return render_template(
        "console/webhooks/deliveries.html",
        place=place,
        listing=listing,
        hooks={one.id: one for one in hooks},
        warnings=service.payload_warnings(place.account.id),
    )


def _found(listing: lists.Listing, by: Principal) -> tuple[list[Any], int]:
    wanted = {**listing.wanted, "webhook_id": listing.filters.get("webhook")}
    if wanted.keys() & {"status", "event"}:  # which no index finds
        wanted["after"] = listing.from_newest(lambda newer: log.place(newer, by=by))
    return log.page(wanted, listing.skip, lists.SIZE, by=by, most=listing.most)


@blueprint.get(DELIVERY)
@public
@guard.for_admins
def show_delivery(account_id: str, webhook_id: str, delivery_id: str) -> str:
    """One delivery with its payload and every attempt."""
    place = scopes.found(account_id)
    webhook = service.get(webhook_id, by=place.by)
    shown = log.get(webhook, delivery_id, by=place.by)
    return render_template(
        "console/webhooks/delivery.html",
        place=place,
        webhook=webhook,
        delivery=shown,
        payload=_pretty(shown["payload"]),
    )


@blueprint.post(f"{DELIVERY}/redeliver")
@public
@guard.for_admins
def redeliver(account_id: str, webhook_id: str, delivery_id: str) -> Page | BaseResponse:
    """Make a delivery again, and go on to the new one."""
    place = scopes.found(account_id)
    try:
        webhook = service.get(webhook_id, by=place.by)
        again = log.redeliver(webhook, delivery_id, by=place.by)
    except AppError as error:
        return webhooks.refused(place, webhook_id, error)
    at = {**place.at, "webhook_id": webhook_id, "delivery_id": again["id"]}
    return told("It is on its way again, as this new delivery.", "console.show_delivery", **at)


@blueprint.post(f"{ONE}/redeliver")
@public
@guard.for_admins
@resubmit.shows_form
def redeliver_failed(account_id: str, webhook_id: str) -> Page | BaseResponse:
    """Make all deliveries again that failed since a time."""
    place, form = scopes.found(account_id), forms.sent("since")
    try:
        since = form.checked(("since",), since=LONGEST_TIME)["since"]
        begin, now = _moment("since", since), clock.now()
        count = log.redeliver_failed(service.get(webhook_id, by=place.by), begin, now)
    except AppError as error:
        return webhooks.refused(place, webhook_id, error, form)
    if not count:
        return told("None had failed since.", DELIVERIES, **place.at, webhook=webhook_id)
    asked = {"since": clock.iso(begin), "until": clock.iso(now)}
    at = {**place.at, "webhook_id": webhook_id, **asked}
    return redirect(url_for("console.show_sent_again", **at), 303)


@blueprint.get(f"{ONE}/sent-again")
@public
@guard.for_admins
def show_sent_again(account_id: str, webhook_id: str) -> str:
    """How far the deliveries are that are made again."""
    place, times = scopes.found(account_id), (request.args.get(n, "") for n in ("since", "until"))
    webhook = service.get(webhook_id, by=place.by)
    try:
        since, until = (clock.parse(one) if one else clock.now() for one in times)
    except ValueError:
        raise NotFound from None
    states = log.sent_again(webhook, since, until)
    shown = {"place": place, "webhook": webhook, "until": until, "states": states}
    going = states[PENDING] + states[RETRYING]
    return render_template("console/webhooks/sent_again.html", **shown, going=going)


def _moment(name: str, text: str) -> Any:
    try:
        return clock.parse(text)
    except ValueError:
        message = "Give a date and time, such as 2026-01-31T10:00 (UTC)."
        raise InvalidValues([problem(name, "invalid_datetime", message)]) from None


def _pretty(value: Any) -> str:
    # What is stored is passed through unread.
    plain = orjson.loads(orjson.dumps(value))
    text = orjson.dumps(plain, option=orjson.OPT_INDENT_2).decode()
    return text if len(text) <= LONGEST_PAYLOAD else f"{text[:LONGEST_PAYLOAD]}…"
