"""The form of a webhook: what it offers, and what it sends as the service takes it."""

from __future__ import annotations

from typing import Any

from app import clock
from app.accounts.models import PII_GROUP
from app.collections import definition
from app.console.shell import forms
from app.console.shell.forms import Form
from app.console.shell.scopes import Place
from app.errors import InvalidValues, problem
from app.webhooks import headers
from app.webhooks.models import OPERATIONS, Webhook

TEXTS = ("url", "collection", "filter", "headers")
LONGEST = {"url": 2048, "collection": 100, "filter": 2000, "headers": 100_000}
EVENTS = [
    {"id": "create", "name": "create", "description": "a record is made"},
    {"id": "update", "name": "update", "description": "a record is changed"},
    {"id": "delete", "name": "delete", "description": "a record is deleted"},
]


def empty() -> Form:
    """The form for a new webhook."""
    return Form({"events": ""}, list(OPERATIONS))


def of_webhook(webhook: Webhook) -> Form:
    """The form with what a webhook is now."""
    shown = headers.masked(webhook.headers) or {}
    values = {
        "url": webhook.url,
        "collection": webhook.collection,
        "filter": webhook.filter or "",
        "headers": "\n".join(f"{name}: {text}" for name, text in shown.items()),
        "include_pii": "true" if webhook.include_pii else "",
        "events": "",
        "seen": clock.iso(webhook.updated_at),
    }
    return Form(values, list(webhook.events))


def sent() -> Form:
    """The form as it was sent."""
    return forms.sent(*TEXTS, "include_pii", "seen", chosen="events")


def body(form: Form) -> dict[str, Any]:
    """What the service is asked for. Raises InvalidValues."""
    sent = form.checked(("url", "collection"), **LONGEST)
    events = [name for name in OPERATIONS if name in form.chosen]
    headers, found = _headers(sent["headers"])
    if not events:
        found.append(problem("events", "required", "Choose at least one."))
    if found:
        raise InvalidValues(found)
    return {
        "url": sent["url"],
        "collection": sent["collection"],
        "events": events,
        "filter": sent["filter"] or None,
        "headers": headers or None,
        "include_pii": sent["include_pii"] == "true",
    }


def choices(place: Place, webhook: Webhook | None = None) -> dict[str, Any]:
    """What the form offers."""
    may = PII_GROUP in place.by.groups
    return {
        "collections": [one.name for one in definition.get_all() if place.opened(one)],
        "events": EVENTS,
        # Whoever may not have personal data sent may still end it.
        "offers_pii": may or (webhook is not None and webhook.include_pii),
    }


def _headers(text: str) -> tuple[dict[str, str], list[dict[str, Any]]]:
    headers: dict[str, str] = {}
    found = []
    for line in filter(None, (line.strip() for line in text.splitlines())):
        name, colon, value = (part.strip() for part in line.partition(":"))
        if not colon:
            message = f"{line[:80]!r} is no header: write one a line, as Name: value."
            found.append(problem("headers", "name_invalid", message))
        elif name in headers:
            found.append(problem("headers", "name_duplicate", f"{name[:80]} is named twice."))
        headers[name] = value
    return headers, found
