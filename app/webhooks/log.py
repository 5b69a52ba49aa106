"""The delivery log."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

import orjson
import sqlalchemy as sa

from app import clock, db
from app.accounts.models import SYSTEM_ACCOUNT_ID
from app.auth.principal import Principal
from app.context import shown_accounts
from app.db import counts, filters
from app.errors import NotFound
from app.types import JSONObject
from app.webhooks import delivery, outbox, queue, redaction
from app.webhooks.delivery import Result
from app.webhooks.models import ATTEMPTS, DELIVERIES, IS_UNDELIVERED, DeliveryState, Webhook
from app.webhooks.redaction import HiddenBy

SIGNATURES = re.compile("x-service-signature|webhook-signature", re.IGNORECASE)
IS_LAST_ATTEMPT = sa.and_(
    ATTEMPTS.c.account_id == DELIVERIES.c.account_id,
    ATTEMPTS.c.delivery_id == DELIVERIES.c.id,
    ATTEMPTS.c.claim == DELIVERIES.c.last_claim,
)


@dataclass(frozen=True)
class DeliveryFilter:
    """Which deliveries: those that match all values that are set."""

    account_id: str | None = None
    webhook_id: str | None = None
    record_id: str | None = None
    ids: Sequence[str] | None = None
    status: str | None = None
    event: str | None = None
    from_date: datetime | None = None  # created since then
    to_date: datetime | None = None  # created before then
    after: str | None = None
    """The id of a delivery that all results are newer than."""


@dataclass(frozen=True)
class Delivery:
    """A delivery with its last response, as far as a reader may see them."""

    id: str
    account_id: str
    webhook_id: str
    event: str
    record_id: str | None
    payload: Any
    """JSON, or an `orjson.Fragment` of it."""
    holds_pii: bool
    superadmin_id: str | None
    status: str
    attempt_number: int
    last_claim: int | None
    """None until the first attempt."""
    response_status: int | None
    response_body: str | None
    error: str | None
    next_retry_at: datetime | None
    delivered_at: datetime | None
    replay_of: str | None
    requested_by: str | None
    created_at: datetime
    hidden_by: HiddenBy | None
    """The reason why the reader does not see record and response."""


@dataclass(frozen=True)
class Attempt:
    """An attempt of a delivery, as far as a reader may see it."""

    id: str
    attempt_number: int
    status_code: int | None
    response_body: str | None
    error: str | None
    duration_ms: int
    attempted_at: datetime
    request: JSONObject | None


@dataclass(frozen=True)
class DeliveryWithAttempts(Delivery):
    """A delivery with all attempts, oldest first."""

    attempts: Sequence[Attempt]


COMPUTED = ("payload", "response_status", "response_body", "hidden_by")
COLUMNS = [field.name for field in fields(Delivery) if field.name not in COMPUTED]


def page(
    where: DeliveryFilter,
    skip: int,
    limit: int,
    *,
    by: Principal,
    max_total: int | None = None,
) -> tuple[list[Delivery], int]:
    """Deliveries, newest first, and the total (counted up to one more than `max_total`)."""
    reader = redaction.Reader(by)
    # An account is that of a webhook which the caller was shown.
    conditions = [] if where.account_id else _visible(by)
    columns = ("account_id", "webhook_id", "status", "event")
    conditions += filters.log_conditions(DELIVERIES, vars(where), columns)
    if where.ids is not None:
        conditions.append(DELIVERIES.c.id.in_(where.ids))
    if where.after:
        conditions.append(DELIVERIES.c.id > where.after)
    if where.record_id:
        account_id = where.account_id or by.require_account_id()
        visible = reader.visible_ids(account_id, where.record_id)
        conditions.append(DELIVERIES.c.id.in_(visible))
    total = counts.count_up_to(DELIVERIES, conditions, max_total)
    query = _with_last_attempt().where(*conditions).order_by(DELIVERIES.c.id.desc())
    rows = db.connection().execute(query.offset(skip).limit(limit)).mappings()
    return [_as_seen(row, reader) for row in rows], total


@dataclass(frozen=True)
class Waiting:
    """The number of a webhook's deliveries that are to be sent, and the time of the next retry."""

    number: int
    next_at: datetime | None


def waiting(account_id: str, limit: int) -> dict[str, Waiting]:
    """The waiting deliveries by webhook, among up to `limit` + 1 of an account."""
    columns = (DELIVERIES.c.webhook_id, DELIVERIES.c.next_retry_at)
    query = sa.select(*columns).where(
        DELIVERIES.c.account_id == account_id, DELIVERIES.c.due_at.is_not(None)
    )
    due = query.limit(limit + 1).subquery()
    numbers = (sa.func.count().label("number"), sa.func.min(due.c.next_retry_at).label("next_at"))
    grouped = sa.select(due.c.webhook_id, *numbers).group_by(due.c.webhook_id)
    rows, now = db.connection().execute(grouped), clock.now()
    return {
        row.webhook_id: Waiting(
            row.number, row.next_at if row.next_at and row.next_at > now else None
        )
        for row in rows
    }


def place(newer: int, *, by: Principal) -> str | None:
    """The id of the delivery after the `newer` newest ones, for `after`; None if there are
    fewer.
    """
    delivery_id: str | None = counts.value_at_offset(DELIVERIES.c.id, _visible(by), newer)
    return delivery_id


def _visible(by: Principal) -> list[Any]:
    return [] if by.account_id is None else [DELIVERIES.c.account_id == by.account_id]


def get(webhook: Webhook, delivery_id: str, *, by: Principal) -> DeliveryWithAttempts:
    """One delivery with all attempts, oldest first. Raises NotFound."""
    conditions = (*_of_webhook(webhook), DELIVERIES.c.id == delivery_id.lower())
    row = db.connection().execute(_with_last_attempt().where(*conditions)).mappings().first()
    if row is None:
        raise NotFound("No delivery with this id.")
    query = sa.select(ATTEMPTS).where(
        ATTEMPTS.c.account_id == webhook.account_id, ATTEMPTS.c.delivery_id == row["id"]
    )
    attempts = db.connection().execute(query.order_by(ATTEMPTS.c.id)).mappings()
    delivery = _as_seen(row, redaction.Reader(by))
    seen = []
    for attempt in attempts:
        values = {field.name: attempt[field.name] for field in fields(Attempt)}
        if delivery.hidden_by:
            values["response_body"] = None  # it may echo the payload
            if request := attempt["request"]:
                # Who knows the secret could confirm a guess of the payload by its signature.
                sent = request["headers"].items()
                headers = {name: value for name, value in sent if not SIGNATURES.match(name)}
                values["request"] = {**request, "headers": headers}
        seen.append(Attempt(**values))
    return DeliveryWithAttempts(**vars(delivery), attempts=seen)


def webhook_ids(account_id: str, ids: Sequence[str]) -> dict[str, str]:
    """The webhooks of an account's deliveries with these ids."""
    query = sa.select(DELIVERIES.c.id, DELIVERIES.c.webhook_id).where(
        DELIVERIES.c.account_id == account_id, DELIVERIES.c.id.in_(ids)
    )
    return {row.id: row.webhook_id for row in db.connection().execute(query)}


def latest_failures(webhooks: Sequence[Webhook]) -> dict[str, str | int]:
    """The error or the status of each webhook's newest undelivered delivery, in one statement."""
    answer = (DELIVERIES.c.webhook_id, ATTEMPTS.c.status_code, ATTEMPTS.c.error)
    queries = [
        sa.select(*answer)
        .select_from(DELIVERIES.join(ATTEMPTS, IS_LAST_ATTEMPT))
        .where(*_of_webhook(webhook), IS_UNDELIVERED)
        .order_by(DELIVERIES.c.id.desc())
        .limit(1)
        for webhook in webhooks
    ]
    if not queries:
        return {}
    found = sa.union_all(*(sa.select(query.subquery()) for query in queries))
    rows = db.connection().execute(found)
    return {row.webhook_id: row.error or row.status_code for row in rows}


def next_request(webhook: Webhook, waiting: Delivery) -> JSONObject | None:
    """The request that the next attempt of a waiting delivery would send now, without its body.

    None if nothing is to be sent, or if its signature is hidden with the payload.
    """
    is_waiting = waiting.status in (DeliveryState.PENDING, DeliveryState.RETRYING)
    if not is_waiting or waiting.hidden_by:
        return None
    query = sa.select(*queue.WORK_COLUMNS).where(
        *_of_webhook(webhook), DELIVERIES.c.id == waiting.id
    )
    row = db.connection().execute(query).one()
    return delivery.next_request(queue.work(**row._asdict()), queue.target(webhook))


def record_test(result: Result) -> None:
    """Record a test, which is not retried."""
    work = result.work
    status = DeliveryState.DELIVERED if result.delivered else DeliveryState.FAILED
    row = outbox.row(work.account_id, work.webhook_id, work.event, work.payload, status=status)
    row |= {"id": work.id, "claim": work.claim, "last_claim": work.claim, "attempt_number": 1}
    row["delivered_at"] = clock.now() if result.delivered else None
    with db.transaction() as session:
        session.execute(sa.insert(DELIVERIES), [row])
        session.execute(sa.insert(ATTEMPTS), [queue.attempt_row(result)])
        if result.delivered:
            queue.note_health(work.account_id, [result])


def _of_webhook(webhook: Webhook) -> list[Any]:
    table = DELIVERIES.c
    return [table.account_id == webhook.account_id, table.webhook_id == webhook.id]


def _with_last_attempt() -> sa.Select[Any]:
    answer = (ATTEMPTS.c.status_code, ATTEMPTS.c.response_body, ATTEMPTS.c.error)
    joined = DELIVERIES.outerjoin(ATTEMPTS, IS_LAST_ATTEMPT)
    return sa.select(DELIVERIES, *answer).select_from(joined)


def _as_seen(row: sa.RowMapping, reader: redaction.Reader) -> Delivery:
    shown_accounts.note(row["account_id"])
    if row["account_id"] == SYSTEM_ACCOUNT_ID:  # maybe an event of another account
        shown_accounts.note(orjson.loads(row["payload"]).get("account_id"))
    hidden_by, payload = reader.hidden_by(row), orjson.Fragment(row["payload"])
    if hidden_by:
        payload = orjson.loads(row["payload"])
        payload |= {name: None for name in ("record", "previous") if name in payload}
    return Delivery(
        **{name: row[name] for name in COLUMNS},
        payload=payload,
        response_status=row["status_code"],
        # The response may echo the payload.
        response_body=None if hidden_by else row["response_body"],
        hidden_by=hidden_by,
    )
