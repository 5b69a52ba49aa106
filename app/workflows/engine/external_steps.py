"""Steps with external effects: requests and mails, at least once, under a stable key.

They use no database: the worker records the start and the result.
"""

from __future__ import annotations

import smtplib
import time
from collections.abc import Mapping
from typing import Any
from uuid import NAMESPACE_URL, uuid5

import orjson

from app import config
from app.errors import AppError
from app.outbound import address_policy, client, header_values, mail
from app.rest import json_input
from app.types import JSONMapping, JSONObject
from app.webhooks import delivery
from app.workflows.language import templates
from app.workflows.language.action_checks import MOST_ADDRESSES, address

USER_AGENT = "Atrium-Workflows/1"
LONGEST_SUBJECT = 200
SECONDS_PER_MAIL = 60
ACTIONS = ("send_webhook", "send_email")


class Failed(Exception):
    """A failed attempt; the message is for the log."""


def key_of(instance_id: str, path: str) -> str:
    """The idempotency key of a step."""
    return str(uuid5(NAMESPACE_URL, f"atrium:{instance_id}/{path}"))


def carry_out(
    kind: str, given: JSONMapping, key: str, about: Mapping[str, str], sender: mail.Sender
) -> JSONObject:
    """Send once, and return the step's output. Raises Failed.

    `about` are additional request headers.
    """
    if kind == "send_email":
        return _mailed(given, key, sender)
    return _requested(given, {"Idempotency-Key": key, **about})


def seconds(kind: str, given: JSONMapping) -> int:
    """The time limit of an attempt; nobody repeats it before."""
    if kind == "send_email":
        return SECONDS_PER_MAIL * min(len(_recipients(given)), MOST_ADDRESSES)
    return config.current().webhook_timeout_seconds


def logged(given: JSONMapping) -> JSONObject:
    """The settings for the log, with masked headers."""
    headers = given.get("headers")
    if not isinstance(headers, Mapping):
        return dict(given)
    return {**given, "headers": dict.fromkeys(headers, header_values.MASK)}


def _requested(given: JSONMapping, about: Mapping[str, str]) -> JSONObject:
    url, method = given.get("url"), str(given.get("method") or "POST").upper()
    if not isinstance(url, str):
        raise Failed("The template of the url did not return text.")
    kind, body = _body(given.get("body"))
    ours = {"User-Agent": USER_AGENT, "Connection": "close", **about}
    custom = _headers(given.get("headers"))
    if kind and not any(name.lower() == "content-type" for name in custom):
        ours["Content-Type"] = kind
    allowed = delivery.rules(config.current())
    try:
        answer = client.send(method, url, {**custom, **ours}, body, allowed)
    except (address_policy.RequestRefused, address_policy.RequestFailed) as error:
        raise Failed(str(error)) from error
    if not 200 <= answer.status < 300:
        raise Failed(f"The receiver responded with {answer.status}.")
    return {"status_code": answer.status, "body": _read(answer.body)}


def _body(given: object) -> tuple[str | None, bytes | None]:
    if given is None:
        return None, None
    if isinstance(given, str):
        return "text/plain; charset=utf-8", given.encode(errors="replace")
    return "application/json", orjson.dumps(given)


def _headers(given: Any) -> dict[str, str]:
    found = {}
    for name, value in (given or {}).items():
        text = templates.written(value)
        if not client.HEADER_VALUE.fullmatch(text):
            raise Failed(f"The value of {name} has invalid characters.")
        found[name] = text
    return found


def _read(text: str) -> object:
    try:
        return json_input.loads(text.encode()) if text else None
    except AppError:
        return text  # what cannot be kept as it is, is kept as the text that came


def addresses(given: JSONMapping) -> list[str]:
    """The normalized recipients of a mail. Raises Failed."""
    recipients = _recipients(given)
    if not 1 <= len(recipients) <= MOST_ADDRESSES:
        raise Failed(f"A mail needs 1 to {MOST_ADDRESSES} addresses.")
    normalized = [one for one in (address(str(each)) for each in recipients) if one]
    if len(normalized) < len(recipients):
        raise Failed("The template did not return an email address.")
    return normalized


def _mailed(given: JSONMapping, key: str, sender: mail.Sender) -> JSONObject:
    to = addresses(given)
    subject = " ".join(templates.written(given.get("subject")).split())[:LONGEST_SUBJECT]
    text, begun = templates.written(given.get("body")), time.monotonic()
    try:
        for number, one in enumerate(to):
            if time.monotonic() - begun > SECONDS_PER_MAIL * max(number, 1):
                raise Failed(f"The mail server took more than {SECONDS_PER_MAIL} seconds a mail.")
            about = {"key": f"{key}.{one}", "subject": subject, "body": text}
            mail.send_for(sender, one, "workflow", **about)
    except (OSError, smtplib.SMTPException) as error:
        raise Failed(f"The mail server rejected the mail: {type(error).__name__}.") from error
    return {"sent": True, "to": to}


def _recipients(given: JSONMapping) -> list[Any]:
    to = given.get("to")
    return to if isinstance(to, list) else [to]
