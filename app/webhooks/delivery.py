"""One delivery attempt: the request and its result. No database access."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime

from app import clock, config
from app.auth.principal import NOBODY_ID
from app.ids import new_id
from app.outbound import address_policy, client
from app.webhooks import signing
from app.webhooks.queue import Result, Target, Work

USER_AGENT = "Atrium-Webhooks/1"
FORMER_MAKER = "The payload shows what a previous owner could view and the current one may not."
OURS = frozenset(
    (
        *("accept-encoding", "connection", "content-encoding", "content-length", "content-type"),
        *("cookie", "expect", "host", "keep-alive", "proxy-authorization", "proxy-connection"),
        *("te", "trailer", "transfer-encoding", "upgrade", "user-agent"),
    )
)
OUR_PREFIXES = ("x-service-", "webhook-")


def is_ours(header: str) -> bool:
    """Whether only the service may set a header."""
    name = header.lower().replace("_", "-")  # many a receiver knows no difference
    return name in OURS or name.startswith(OUR_PREFIXES)


def rules(settings: config.Config) -> address_policy.Rules:
    """The address policy and time limit of deliveries."""
    return address_policy.Rules(
        allow_private=settings.private_targets,
        https_only=settings.production,
        seconds=settings.webhook_timeout_seconds,
    )


def attempt(work: Work, allowed: address_policy.Rules) -> Result:
    """Send a delivery once."""
    begun, at = time.perf_counter(), clock.now()
    told: dict[str, object]
    if work.target is None:
        told = {"error": "The webhook was deleted.", "final": True}
    elif not work.target.enabled:
        told = {"held": True}
    elif work.superadmin_id not in (None, work.target.created_by):
        told = {
            "error": "It shows a superadmin's view, and the owner has changed.",
            "final": True,
        }
    elif work.viewed_by not in (None, NOBODY_ID, work.target.created_by):
        # It may have been claimed before it was handed over: tried again, it is known.
        told = {"error": FORMER_MAKER, "final": work.attempt_number > 0}
    elif work.holds_pii and (work.pii_withheld or not work.target.include_pii):
        told = {"error": "The webhook may no longer receive personal data.", "final": True}
    elif not work.target.keys(at):
        told = {"error": "The secret cannot be decrypted with the configured keys."}
    else:
        told = _sent(work, work.target, at, allowed)
    milliseconds = round((time.perf_counter() - begun) * 1000)
    return Result(work, new_id(), at, milliseconds, **told)  # type: ignore[arg-type]


def _sent(
    work: Work, target: Target, at: datetime, allowed: address_policy.Rules
) -> dict[str, object]:
    body = work.payload.encode()
    try:
        headers = _headers(work, target, at, body)
        answer = client.send("POST", target.url, headers, body, allowed)
    except (address_policy.RequestRefused, address_policy.RequestFailed) as error:
        return {"error": str(error)}
    told: dict[str, object] = {"status_code": answer.status, "response_body": answer.body}
    if not 200 <= answer.status < 300:
        told["error"] = f"The receiver responded with {answer.status}."
    return told


def _headers(work: Work, target: Target, at: datetime, body: bytes) -> Mapping[str, str]:
    custom = {name: value for name, value in target.headers.items() if not is_ours(name)}
    signed = signing.headers(
        target.keys(at), delivery_id=work.id, timestamp=int(at.timestamp()), body=body
    )
    replay = {"X-Service-Replay-Of": work.replay_of} if work.replay_of else {}
    return {
        **custom,
        "Content-Type": "application/json",
        "User-Agent": USER_AGENT,
        "Connection": "close",
        "X-Service-Event": work.event,
        "X-Service-Webhook-Id": work.webhook_id,
        "X-Service-Delivery": work.id,
        **work.depth_headers,
        **signed,
        **replay,
    }
