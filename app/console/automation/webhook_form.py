"""The form of a webhook."""

from __future__ import annotations

from collections.abc import Sequence

from app import clock
from app.accounts.models import PII_GROUP
from app.collections import definitions
from app.console.shell import forms
from app.console.shell.forms import Form, TemplateContext
from app.console.shell.scopes import AccountScope
from app.errors import InvalidValues, problem
from app.types import JSONObject
from app.web.languages import gettext, lazy_gettext
from app.webhooks import headers
from app.webhooks.models import OPERATIONS, Webhook

TEXT_FIELDS = ("url", "collection", "filter", "headers")
MAX_LENGTHS = {"url": 2048, "collection": 100, "filter": 2000, "headers": 100_000}
EVENTS = [
    {"id": "create", "name": lazy_gettext("Created")},
    {"id": "update", "name": lazy_gettext("Updated")},
    {"id": "delete", "name": lazy_gettext("Deleted")},
]


def blank() -> Form:
    return Form({"events": ""}, list(OPERATIONS))


def from_webhook(webhook: Webhook) -> Form:
    masked = headers.masked(webhook.headers) or {}
    values = {
        "url": webhook.url,
        "collection": webhook.collection,
        "filter": webhook.filter or "",
        "headers": "\n".join(f"{name}: {text}" for name, text in masked.items()),
        "include_pii": "true" if webhook.include_pii else "",
        "events": "",
        "seen": clock.iso(webhook.updated_at),
    }
    return Form(values, list(webhook.events))


def submitted() -> Form:
    return forms.submitted(*TEXT_FIELDS, "include_pii", "seen", selected="events")


def body(form: Form) -> JSONObject:
    """The request body that the form submits. Raises InvalidValues."""
    values = form.validated(("url", "collection"), **MAX_LENGTHS)
    events = [name for name in OPERATIONS if name in form.selected]
    headers, problems = _parse_headers(values["headers"])
    if not events:
        problems.append(problem("events", "required", gettext("Choose at least one.")))
    if problems:
        raise InvalidValues(problems)
    return {
        "url": values["url"],
        "collection": values["collection"],
        "events": events,
        "filter": values["filter"] or None,
        "headers": headers or None,
        "include_pii": values["include_pii"] == "true",
    }


def choices(scope: AccountScope, webhook: Webhook | None = None) -> TemplateContext:
    """The template variables with the form's choices."""
    is_pii_member = PII_GROUP in scope.by.groups
    return {
        "collections": [
            collection.name
            for collection in definitions.get_all()
            if scope.allowed_operations(collection)
        ],
        "events": EVENTS,
        # Admins outside the group may still switch it off.
        "offers_pii": is_pii_member or (webhook is not None and webhook.include_pii),
    }


def event_names(events: Sequence[str]) -> str:
    names = {event["id"]: str(event["name"]) for event in EVENTS}
    return ", ".join(names[event] for event in events).capitalize()


def _parse_headers(text: str) -> tuple[dict[str, str], list[JSONObject]]:
    headers: dict[str, str] = {}
    problems = []
    for line in filter(None, (line.strip() for line in text.splitlines())):
        name, colon, value = (part.strip() for part in line.partition(":"))
        if not colon:
            message = gettext(
                "%(line)s is not a header. Write one per line, as Name: value.",
                line=repr(line[:80]),
            )
            problems.append(problem("headers", "name_invalid", message))
        elif name in headers:
            message = gettext("%(name)s is given twice.", name=name[:80])
            problems.append(problem("headers", "name_duplicate", message))
        headers[name] = value
    return headers, problems
