"""The request of a delivery as it was or would be sent, and its JSON with highlights."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson
from flask import render_template

from app.webhooks import log
from app.webhooks.models import Webhook

MAX_HIGHLIGHTED_LENGTH = 20_000  # characters; longer texts are one token
MAX_LENGTH = 100_000  # characters; the rest is cut
TOKEN = re.compile(
    r'(?P<key>"(?:[^"\\]|\\.)*"(?=:))|(?P<string>"(?:[^"\\]|\\.)*")'
    r"|(?P<number>-?[0-9][0-9.eE+-]*)|(?P<word>true|false|null)|[^\"0-9a-z-]+|."
)

NEXT = "next"
MAX_LITERAL_LENGTH = 4000  # characters of a body within the code; longer ones are read from a file
MAX_RAW_LENGTH = 100_000  # characters of a body that a page shows as sent


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


def find(webhook: Webhook, delivery: log.DeliveryWithAttempts, attempt: str) -> SentRequest | None:
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


def pretty(value: object) -> list[Token]:
    # Stored JSON is passed through unparsed.
    plain = orjson.loads(orjson.dumps(value))
    text = orjson.dumps(plain, option=orjson.OPT_INDENT_2).decode()
    if len(text) > MAX_LENGTH:
        return [Token("", f"{text[:MAX_LENGTH]}…")]
    return list(_tokens(text)) if len(text) <= MAX_HIGHLIGHTED_LENGTH else [Token("", text)]


def _tokens(text: str) -> Iterator[Token]:
    for match in TOKEN.finditer(text):
        yield Token(match.lastgroup or "", match[0])
