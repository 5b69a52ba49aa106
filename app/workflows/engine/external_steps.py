"""Steps with external effects: requests and mails, at least once, under a stable key.

They use no database: the worker records the start and the result.
"""

from __future__ import annotations

import smtplib
import time
from collections.abc import Mapping
from contextlib import suppress
from uuid import NAMESPACE_URL, uuid5

import orjson

from app import config
from app.errors import AppError
from app.outbound import address_policy, client, header_values, mail
from app.types import JSONMapping, JSONObject
from app.web import serialization
from app.webhooks import delivery
from app.workflows.language import templates
from app.workflows.language.checks import MAX_ADDRESSES
from app.workflows.language.definition import OWN_STEPS, Step

USER_AGENT = "Atrium-Workflows/1"
LONGEST_SUBJECT = 200
SECONDS_PER_MAIL = 60
ACTIONS = ("send_webhook", "send_email")
OWN_SECONDS = 300
"""How long the code of an extension may take; nobody repeats it before."""


class Failed(Exception):
    """A failed attempt; the message is for the log."""


def idempotency_key(instance_id: str, path: str) -> str:
    """The idempotency key of a step."""
    return str(uuid5(NAMESPACE_URL, f"atrium:{instance_id}/{path}"))


def carry_out(
    kind: str,
    input: JSONMapping,
    key: str,
    extra_headers: Mapping[str, str],
    sender: mail.Sender | None,
) -> JSONObject:
    """Send once, and return the step's output. Raises Failed.

    `about` are additional request headers.
    """
    if kind == "send_email" and sender is not None:
        return _send_mail(input, key, sender)
    return _send_request(input, {"Idempotency-Key": key, **extra_headers})


def is_external(step: Step) -> bool:
    """Whether a step runs outside of a transaction."""
    return step.action in ACTIONS or step.type in OWN_STEPS


def seconds(kind: str, input: JSONMapping) -> int:
    """The time limit of an attempt; nobody repeats it before."""
    if kind in OWN_STEPS:
        return OWN_SECONDS
    if kind == "send_email":
        return SECONDS_PER_MAIL * min(len(input["to"]), MAX_ADDRESSES)
    return config.current().webhook_timeout_seconds


def loggable(input: JSONMapping) -> JSONObject:
    """The settings for the log, with masked headers."""
    headers = input.get("headers")
    if not isinstance(headers, Mapping):
        return dict(input)
    return {**input, "headers": dict.fromkeys(headers, header_values.MASK)}


def _send_request(input: JSONMapping, extra_headers: Mapping[str, str]) -> JSONObject:
    url, method = input.get("url"), str(input.get("method") or "POST").upper()
    if not isinstance(url, str):
        raise Failed("The template of the url did not return text.")
    content, kind, body = input.get("body"), "application/json", None
    if isinstance(content, str):
        kind, body = "text/plain; charset=utf-8", content.encode(errors="replace")
    elif content is not None:
        body = orjson.dumps(content)
    service_headers = {"User-Agent": USER_AGENT, "Connection": "close", **extra_headers}
    custom = {}
    for name, value in (input.get("headers") or {}).items():
        custom[name] = templates.to_text(value)
        if not client.HEADER_VALUE.fullmatch(custom[name]):
            raise Failed(f"The value of {name} has invalid characters.")
    if body is not None and not any(name.lower() == "content-type" for name in custom):
        service_headers["Content-Type"] = kind
    allowed = delivery.rules(config.current())
    try:
        request = client.Request(method, url, {**custom, **service_headers}, body)
        response = client.send(request, allowed)
    except (address_policy.RequestRefused, address_policy.RequestFailed) as error:
        raise Failed(str(error)) from error
    if not 200 <= response.status < 300:
        raise Failed(f"The receiver responded with {response.status}.")
    received: object = response.body or None
    if response.body:
        with suppress(AppError):  # it stays a text: not JSON that we can store
            received = serialization.parse(response.body.encode())
    return {"status_code": response.status, "body": received}


def _send_mail(input: JSONMapping, key: str, sender: mail.Sender) -> JSONObject:
    to = list(input["to"])
    subject = " ".join(templates.to_text(input.get("subject")).split())[:LONGEST_SUBJECT]
    text, started = templates.to_text(input.get("body")), time.monotonic()
    try:
        for number, recipient in enumerate(to):
            if time.monotonic() - started > SECONDS_PER_MAIL * min(max(number, 1), MAX_ADDRESSES):
                raise Failed(f"The mail server took more than {SECONDS_PER_MAIL} seconds a mail.")
            content = {"key": f"{key}.{recipient}", "subject": subject, "body": text}
            mail.send_for(sender, recipient, "workflow", **content)
    except (OSError, smtplib.SMTPException) as error:
        raise Failed(f"The mail server rejected the mail: {type(error).__name__}.") from error
    return {"sent": True, "to": to}
