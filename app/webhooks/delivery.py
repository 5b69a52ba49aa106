"""One delivery attempt: the request, its result, and when it is retried. No database access."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from app import clock, config
from app.auth.principal import NOBODY_ID
from app.ids import new_id
from app.outbound import address_policy, client
from app.outbound.header_values import MASK
from app.types import JSONMapping, JSONObject
from app.webhooks import signing
from app.webhooks.models import DeliveryState

METHOD, USER_AGENT = "POST", "Atrium-Webhooks/1"
PREVIOUS_OWNER = "The payload shows what a previous owner could view and the current one may not."
RESERVED_HEADERS = frozenset(
    (
        *("accept-encoding", "connection", "content-encoding", "content-length", "content-type"),
        *("cookie", "expect", "host", "keep-alive", "proxy-authorization", "proxy-connection"),
        *("te", "trailer", "transfer-encoding", "upgrade", "user-agent"),
    )
)
RESERVED_PREFIXES = ("x-service-", "webhook-")
BUSY = (429, 503)


@dataclass(frozen=True)
class Target:
    """The receiver of a webhook's deliveries, and the secrets that sign them."""

    url: str
    secret: str | None
    """None where it cannot be read with the service's present keys."""
    previous: str | None
    previous_until: datetime | None
    headers: Mapping[str, str]
    enabled: bool = True
    """False also while it is paused: its deliveries wait."""
    include_pii: bool = False
    created_by: str | None = None

    def keys(self, at: datetime) -> tuple[str, ...]:
        """The secrets that are valid at a moment, newest first."""
        if self.secret is None:
            return ()
        older = self.previous_until is not None and at < self.previous_until
        return (self.secret, self.previous) if older and self.previous else (self.secret,)


@dataclass(frozen=True)
class Work:
    """A claimed delivery."""

    account_id: str
    id: str
    claim: int
    webhook_id: str
    event: str
    payload: str
    attempt_number: int  # how many there were before
    replay_of: str | None
    holds_pii: bool = False
    pii_withheld: bool = False
    """Whether the webhook's maker may not be sent the personal data any more."""
    superadmin_id: str | None = None
    """The superadmin whose view it is; nobody else's webhook is sent it."""
    viewed_by: str | None = None
    """The user whose view it is."""
    of_account: str | None = None
    """Of an operator's webhook: the account whose events are sent in order."""
    depth_headers: Mapping[str, str] = field(default_factory=dict)
    """The signed trigger depth, for its receiver (`app/context/trigger_depth.py`)."""
    target: Target | None = None
    """The target, read just before the attempt; None if the webhook is deleted."""


@dataclass(frozen=True)
class Result:
    """One attempt and its response."""

    work: Work
    id: str
    attempted_at: datetime
    duration_ms: int
    status_code: int | None = None
    response_body: str | None = None
    error: str | None = None
    final: bool = False
    """Whether another attempt would be of no use."""
    held: bool = False
    """Whether nothing was tried, as the webhook is disabled; the delivery waits for it."""
    retry_after: int | None = None
    """The seconds to wait, as the receiver requests."""
    request: JSONMapping | None = None
    """The request as sent, without its body; None if nothing was sent."""

    @property
    def delivered(self) -> bool:
        """Whether the receiver accepted it with any 2xx status."""
        return self.status_code is not None and 200 <= self.status_code < 300


class Outcome(NamedTuple):
    """The next status of a delivery, and the seconds until a retry."""

    status: str
    delay: int | None


def is_reserved(header: str) -> bool:
    """Whether only the service may set a header."""
    name = header.lower().replace("_", "-")  # many receivers treat both alike
    return name in RESERVED_HEADERS or name.startswith(RESERVED_PREFIXES)


def rules(settings: config.Config) -> address_policy.Rules:
    """The address policy and time limit of deliveries."""
    return address_policy.Rules(
        allow_private=settings.private_targets,
        https_only=settings.production,
        seconds=settings.webhook_timeout_seconds,
    )


def attempt(work: Work, allowed: address_policy.Rules) -> Result:
    """Send a delivery once."""
    started, attempted_at = time.perf_counter(), clock.now()
    result: dict[str, object]
    if work.target is None:
        result = {"error": "The webhook was deleted.", "final": True}
    elif not work.target.enabled:
        result = {"held": True}
    elif work.superadmin_id not in (None, work.target.created_by):
        result = {
            "error": "It shows a superadmin's view, and the owner has changed.",
            "final": True,
        }
    elif work.viewed_by not in (None, NOBODY_ID, work.target.created_by):
        # It may have been claimed before the ownership changed: the first failure is not final.
        result = {"error": PREVIOUS_OWNER, "final": work.attempt_number > 0}
    elif work.holds_pii and (work.pii_withheld or not work.target.include_pii):
        result = {"error": "The webhook may no longer receive personal data.", "final": True}
    elif not work.target.keys(attempted_at):
        result = {"error": "The secret cannot be decrypted with the configured keys."}
    else:
        result = _send(work, work.target, attempted_at, allowed)
    milliseconds = round((time.perf_counter() - started) * 1000)
    return Result(work, new_id(), attempted_at, milliseconds, **result)  # type: ignore[arg-type]


def _send(
    work: Work, target: Target, attempted_at: datetime, allowed: address_policy.Rules
) -> dict[str, object]:
    body = work.payload.encode()
    headers = _service_headers(work, target, attempted_at, body)
    result: dict[str, object] = {"request": _shown(target, headers)}
    try:
        all_headers = {**_custom_headers(target), **headers}
        response = client.send(client.Request(METHOD, target.url, all_headers, body), allowed)
    except address_policy.RequestRefused as error:
        return {"error": str(error)}
    except address_policy.RequestFailed as error:
        return {**result, "error": str(error)}
    result |= {"status_code": response.status, "response_body": response.body}
    result["retry_after"] = response.retry_after
    if not 200 <= response.status < 300:
        result["error"] = f"The receiver responded with {response.status}."
    return result


def outcome(result: Result) -> Outcome:
    """The next status of a delivery after an attempt.

    A receiver that is busy (429, 503) may ask for a retry that is sooner than the settings have it.
    """
    if result.delivered:
        return Outcome(DeliveryState.DELIVERED, None)
    delays, retries = config.current().webhook_retry_delays, result.work.attempt_number
    if result.final or retries >= len(delays):
        return Outcome(DeliveryState.FAILED, None)
    delay = delays[retries]
    if result.status_code in BUSY and result.retry_after is not None:
        delay = min(delay, max(1, result.retry_after))
    return Outcome(DeliveryState.RETRYING, delay)


def next_request(work: Work, target: Target) -> JSONObject | None:
    """The request that would be sent now, as attempts record it; None without a readable secret."""
    now = clock.now()
    if not target.keys(now):
        return None
    return _shown(target, _service_headers(work, target, now, work.payload.encode()))


def _shown(target: Target, headers: Mapping[str, str]) -> JSONObject:
    masked = dict.fromkeys(_custom_headers(target), MASK)
    return {"method": METHOD, "url": target.url, "headers": {**masked, **headers}}


def _custom_headers(target: Target) -> Mapping[str, str]:
    return {name: value for name, value in target.headers.items() if not is_reserved(name)}


def _service_headers(
    work: Work, target: Target, attempted_at: datetime, body: bytes
) -> Mapping[str, str]:
    signed = signing.headers(
        target.keys(attempted_at),
        delivery_id=work.id,
        timestamp=int(attempted_at.timestamp()),
        body=body,
    )
    replay = {"X-Service-Replay-Of": work.replay_of} if work.replay_of else {}
    return {
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
