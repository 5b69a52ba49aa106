"""The delivery log: requests as sent, their JSON with highlights, attempts, and sending again."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

import orjson
from flask import redirect, render_template, request, url_for
from werkzeug.wrappers import Response as BaseResponse

from app import clock
from app.accounts import users
from app.auth.portals import PortalPage
from app.auth.principal import Principal
from app.console.automation import webhooks
from app.console.automation.webhooks import ACCOUNT, WEBHOOK
from app.console.shell import forms, lists, names
from app.console.shell.access import ADMIN
from app.console.shell.blueprint import page
from app.console.shell.forms import Page, redirect_with_notice
from app.console.shell.scopes import AccountScope
from app.errors import NotFound
from app.web.languages import gettext, ngettext
from app.webhooks import log, payload, redaction, resend, service
from app.webhooks.log import DeliveryFilter
from app.webhooks.models import STATES, DeliveryState, Webhook
from app.webhooks.resend import Selection, Undelivered

LOG = f"{ACCOUNT}/deliveries"
DELIVERY = f"{WEBHOOK}/deliveries/<uuid:delivery_id>"
MAX_WEBHOOKS = 1000
MAX_RESENT = 50
"""The deliveries that the page of resent ones shows."""
DELIVERIES = "console.show_deliveries"
MAX_HIGHLIGHTED_LENGTH = 20_000  # characters; longer texts are one token
MAX_LENGTH = 100_000  # characters; the rest is cut
TOKEN = re.compile(
    r'(?P<key>"(?:[^"\\]|\\.)*"(?=:))|(?P<string>"(?:[^"\\]|\\.)*")'
    r"|(?P<number>-?[0-9][0-9.eE+-]*)|(?P<word>true|false|null)|[^\"0-9a-z-]+|."
)

NEXT = "next"
MAX_LITERAL_LENGTH = 4000  # characters of a body within the code; longer ones are read from a file
MAX_RAW_LENGTH = 100_000  # characters of a body that a page shows as sent


delivery_page = partial(page, role=ADMIN, portal=PortalPage.WEBHOOKS)


@delivery_page(LOG)
def show_deliveries(scope: AccountScope) -> Page:
    """The matching deliveries, newest first."""
    return _log_page(scope)


def _log_page(scope: AccountScope) -> Page:
    hooks = _webhooks(scope)
    listing = _listing(scope, hooks)
    undelivered = Undelivered()
    if not listing.errors:
        listing.with_page(_page(listing, scope.by))
        undelivered = count_undelivered(
            scope, _selection(listing, scope), _selected(listing, hooks)
        )
    page = render_template(
        "console/webhooks/deliveries.html",
        scope=scope,
        listing=listing,
        hooks=hooks,
        undelivered=undelivered,
        form_id=forms.form_id(),
        warnings=service.payload_warnings(scope.account.id),
        names=webhooks.record_names(listing.items, hooks, scope),
    )
    return page, 400 if listing.errors and request.method == "POST" else 200


def count_undelivered(
    scope: AccountScope, selection: Selection, hooks: list[Webhook]
) -> Undelivered:
    """The number of selected deliveries that can be sent again, counted up to a limit."""
    if selection.status not in (None, DeliveryState.FAILED, DeliveryState.RETRYING):
        return Undelivered()
    concerned = resend.undelivered_webhooks(scope.account.id)
    counted = [webhook for webhook in hooks if webhook.enabled and webhook.id in concerned]
    numbers = resend.count_undelivered(counted, selection, lists.MAX_COUNTED)
    return Undelivered(sum(one.failed for one in numbers), sum(one.retrying for one in numbers))


def _webhooks(scope: AccountScope) -> dict[str, Webhook]:
    return {one.id: one for one in service.page(0, MAX_WEBHOOKS, by=scope.by)[0]}


def _listing(scope: AccountScope, hooks: dict[str, Webhook]) -> lists.Listing:
    labels = {webhook.id: f"{webhook.collection}: {webhook.url}" for webhook in hooks.values()}
    choices: lists.Choices = {
        "webhook": labels,
        "status": names.states(STATES),
        "event": payload.EVENTS,
    }
    texts = {"record": gettext("Record id")}
    return lists.from_request(DELIVERIES, choices, texts, lists.TIME_FILTERS, **scope.url_args)


def _selected(listing: lists.Listing, hooks: dict[str, Webhook]) -> list[Webhook]:
    chosen = listing.filters.get("webhook")
    return [one for one in hooks.values() if chosen in (None, one.id)]


def _selection(
    listing: lists.Listing, scope: AccountScope, until: datetime | None = None
) -> Selection:
    """The deliveries that the filters of a list select, until now at the latest."""
    record, filters = listing.filters.get("record"), listing.filters
    ids = redaction.Reader(scope.by).visible_ids(scope.account.id, record) if record else None
    until, times = until or clock.now(), listing.parsed
    since = max(times.get("from_date", resend.EARLIEST), resend.EARLIEST)
    until = min(times.get("to_date", until), until)
    by = scope.by.user_id
    return Selection(since, until, filters.get("event"), filters.get("status"), ids, by)


def _page(listing: lists.Listing, by: Principal) -> tuple[list[Any], int]:
    filters = listing.filters
    where = DeliveryFilter(
        webhook_id=filters.get("webhook"),
        record_id=filters.get("record"),
        status=filters.get("status"),
        event=filters.get("event"),
        from_date=listing.parsed.get("from_date"),
        to_date=listing.parsed.get("to_date"),
    )
    if filters.keys() & {"status", "event"}:  # not indexed
        after = listing.scan_newest(lambda newer: log.place(newer, by=by))
        where = replace(where, after=after)
    return log.page(where, listing.skip, lists.PAGE_SIZE, by=by, max_total=listing.count_limit)


@delivery_page(f"{LOG}/resend", "POST")
def resend_selected(scope: AccountScope) -> BaseResponse:
    """Send the ticked deliveries again, and redirect to the same list."""
    hooks = _webhooks(scope)
    selected = forms.submitted(selected="delivery").selected
    webhook_ids = log.webhook_ids(scope.account.id, [id.lower() for id in selected])
    rendered, number = forms.derive_id([]), 0
    for webhook_id in sorted(set(webhook_ids.values()) & hooks.keys()):
        ids = [id for id, owner in webhook_ids.items() if owner == webhook_id]
        if hooks[webhook_id].enabled:
            number += resend.resend_selected(hooks[webhook_id], ids, by=scope.by, rendered=rendered)
    notice = _sent_notice(number, len(selected) - number)
    listing = _listing(scope, hooks)
    return redirect_with_notice(notice, DELIVERIES, **scope.url_args, **listing.filters)


def _sent_notice(number: int, skipped: int) -> str:
    if not number and not skipped:
        return gettext("Select the deliveries to send again.")
    notice = ngettext(
        "Sending %(num)s delivery again.", "Sending %(num)s deliveries again.", number
    )
    if not skipped:
        return notice
    omitted = gettext(
        "%(count)s skipped: under way already, sent again since you opened the page, of a disabled"
        " webhook, or not for its owner to receive.",
        count=skipped,
    )
    return f"{notice} {omitted}"


@delivery_page(f"{LOG}/resend-undelivered", "POST")
def resend_undelivered(scope: AccountScope) -> Page | BaseResponse:
    """Send all matching deliveries again that did not arrive, and redirect to the progress."""
    hooks = _webhooks(scope)
    listing = _listing(scope, hooks)
    if listing.errors:
        return _log_page(scope)
    selection = _selection(listing, scope)
    chosen = [one for one in _selected(listing, hooks) if one.enabled]
    rendered = forms.derive_id([])
    number = sum(
        resend.resend_undelivered(webhook, replace(selection, rendered=rendered))
        for webhook in chosen
    )
    url_args = {**scope.url_args, **listing.filters}
    if not number:
        notice = gettext("No matching delivery has failed or waits for a retry.")
        return redirect_with_notice(notice, DELIVERIES, **url_args)
    until = clock.iso(selection.until)
    return redirect(url_for("console.show_resent", **url_args, until=until), 303)


@delivery_page(f"{LOG}/resent")
def show_resent(scope: AccountScope) -> str:
    """The progress of deliveries that are sent again together."""
    hooks = _webhooks(scope)
    listing = _listing(scope, hooks)
    try:
        until = clock.parse(request.args.get("until") or clock.iso(clock.now()))
    except ValueError:
        raise NotFound from None
    if listing.errors:
        raise NotFound
    states: Counter[str] = Counter(dict.fromkeys(STATES, 0))
    selected, selection = _selected(listing, hooks), _selection(listing, scope, until)
    for webhook in selected:
        states.update(resend.progress(webhook, selection))
    ids = resend.newest_sent_again(selected, selection, MAX_RESENT)
    resent, _ = log.page(DeliveryFilter(ids=ids), 0, MAX_RESENT, by=scope.by, max_total=0)
    return render_template(
        "console/webhooks/resent.html",
        scope=scope,
        listing=listing,
        hooks=hooks,
        items=resent,
        names=webhooks.record_names(resent, hooks, scope),
        until=until,
        states=states,
        going=states[DeliveryState.PENDING] + states[DeliveryState.RETRYING],
    )


@delivery_page(DELIVERY)
def show_delivery(scope: AccountScope, webhook_id: str, delivery_id: str) -> str:
    """One delivery with its request, payload and all attempts."""
    webhook = service.get(webhook_id, by=scope.by)
    delivery = log.get(webhook, delivery_id, by=scope.by)
    record_names = webhooks.record_names([delivery], {webhook.id: webhook}, scope)
    return render_template(
        "console/webhooks/delivery.html",
        scope=scope,
        webhook=webhook,
        delivery=delivery,
        sent=find_request(webhook, delivery, request.args.get("attempt", "")),
        name=record_names.get(delivery.record_id or ""),
        payload=highlighted(delivery.payload),
        requested_by=_email(scope, delivery.requested_by),
        form_id=forms.form_id(),
    )


def _email(scope: AccountScope, user_id: str | None) -> str | None:
    """The address of a user of the account; a superadmin is one of nobody's account."""
    if user_id is None:
        return None
    return users.emails(scope.account.id, {user_id}).get(user_id) or gettext("a superadmin")


@delivery_page(f"{DELIVERY}/redeliver", "POST", form_page=webhooks.show_webhook)
def redeliver(scope: AccountScope, webhook_id: str, delivery_id: str) -> BaseResponse:
    """Send a delivery again, and redirect to the one that is sent."""
    url_args = {**scope.url_args, "webhook_id": webhook_id}
    rendered = forms.derive_id([])
    webhook = service.get(webhook_id, by=scope.by)
    sent = resend.redeliver(webhook, delivery_id, by=scope.by, rendered=rendered)
    is_same = sent.id == delivery_id.lower()
    notice = (
        gettext("The delivery is sent again under the same id.")
        if is_same
        else gettext("The delivery is sent again as this new one.")
    )
    return redirect_with_notice(notice, "console.show_delivery", **url_args, delivery_id=sent.id)


@dataclass(frozen=True)
class SentRequest:
    attempt: str
    """The number of the attempt, or NEXT."""
    method: str
    url: str
    headers: dict[str, str]
    body: str | None
    """The body as sent; None if it is hidden or too long to show."""
    snippets: dict[str, str]
    """Code that verifies the signature, by language; empty if it is hidden."""
    reads_file: bool
    """Whether the code reads the body from a file."""


def find_request(
    webhook: Webhook, delivery: log.DeliveryWithAttempts, attempt: str
) -> SentRequest | None:
    """The request of an attempt, by default of the last one; None if it is not known."""
    requests = {str(one.attempt_number): one.request for one in delivery.attempts}
    last = next(reversed(requests), NEXT)
    requests[NEXT] = log.next_request(webhook, delivery)
    chosen = attempt if attempt in requests else last
    request = requests[chosen]
    if request is None:
        return None
    body = None if delivery.hidden_by else orjson.dumps(delivery.payload).decode()
    is_signed = "webhook-signature" in request["headers"]
    snippets = _snippets(request["headers"], body) if body and is_signed else {}
    shown = body if body and len(body) <= MAX_RAW_LENGTH else None
    reads_file = len(body or "") > MAX_LITERAL_LENGTH
    return SentRequest(chosen, **request, body=shown, snippets=snippets, reads_file=reads_file)


def _snippets(headers: dict[str, str], body: str) -> dict[str, str]:
    values: dict[str, Any] = {
        "id": headers["webhook-id"],
        "timestamp": headers["webhook-timestamp"],
        "signature": headers["webhook-signature"],
    }
    is_short = len(body) <= MAX_LITERAL_LENGTH
    literals = {"Python": repr(body), "JavaScript": json.dumps(body)}
    return {
        language: render_template(
            f"console/webhooks/verify_{language.lower()}.txt",
            **values,
            body=literal if is_short else None,
        )
        for language, literal in literals.items()
    }


class Token(NamedTuple):
    """A part of a text; `kind` is key, string, number, word or empty."""

    kind: str
    text: str


def highlighted(value: object) -> list[Token]:
    # Stored JSON is passed through unparsed.
    plain = orjson.loads(orjson.dumps(value))
    text = orjson.dumps(plain, option=orjson.OPT_INDENT_2).decode()
    if len(text) > MAX_LENGTH:
        return [Token("", f"{text[:MAX_LENGTH]}…")]
    return list(_tokens(text)) if len(text) <= MAX_HIGHLIGHTED_LENGTH else [Token("", text)]


def _tokens(text: str) -> Iterator[Token]:
    for match in TOKEN.finditer(text):
        yield Token(match.lastgroup or "", match[0])
