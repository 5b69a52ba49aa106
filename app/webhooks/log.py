"""The delivery log."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson
import sqlalchemy as sa

from app import clock, db
from app.auth.principal import Principal
from app.context import shown_accounts
from app.db import counts, filters
from app.errors import NotFound
from app.types import JSONMapping, JSONObject
from app.webhooks import delivery, outbox, queue, redaction
from app.webhooks.models import ATTEMPTS, DELIVERIES, IS_UNDELIVERED, DeliveryState, Webhook
from app.webhooks.queue import Result

SIGNATURES = re.compile("x-service-signature|webhook-signature", re.IGNORECASE)
View = JSONObject
Row = sa.RowMapping
IS_LAST_ATTEMPT = sa.and_(
    ATTEMPTS.c.account_id == DELIVERIES.c.account_id,
    ATTEMPTS.c.delivery_id == DELIVERIES.c.id,
    ATTEMPTS.c.claim == DELIVERIES.c.last_claim,
)


def page(
    filters: JSONMapping,
    skip: int,
    limit: int,
    *,
    by: Principal,
    max_total: int | None = None,
) -> tuple[list[View], int]:
    """Deliveries, newest first, and the total (counted up to one more than `max_total`).

    `filters` may have account_id, webhook_id, record_id, ids, status, event, from_date, to_date and
    `after`, the id of a delivery that all results are newer than.
    """
    reader = redaction.Reader(by)
    conditions = [*_visible(by), *_conditions(filters, reader, by)]
    total = counts.count_up_to(DELIVERIES, conditions, max_total)
    query = _with_last_attempt().where(*conditions).order_by(DELIVERIES.c.id.desc())
    rows = db.connection().execute(query.offset(skip).limit(limit)).mappings()
    return [_view(row, reader) for row in rows], total


@dataclass(frozen=True)
class Waiting:
    """How many deliveries of a webhook are to be sent, and when the next retry is."""

    number: int
    next_at: datetime | None


def waiting(account_id: str, limit: int) -> dict[str, Waiting]:
    """What is to be sent, by webhook, among up to `limit` + 1 deliveries of an account."""
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


def _conditions(query: JSONMapping, reader: redaction.Reader, by: Principal) -> Iterator[Any]:
    yield from filters.log_conditions(
        DELIVERIES, query, ("account_id", "webhook_id", "status", "event")
    )
    if "ids" in query:
        yield DELIVERIES.c.id.in_(query["ids"])
    if query.get("after"):
        yield DELIVERIES.c.id > query["after"]
    if query.get("record_id"):
        account_id = query.get("account_id") or by.require_account_id()
        yield DELIVERIES.c.id.in_(reader.visible_ids(account_id, query["record_id"]))


def get(webhook: Webhook, delivery_id: str, *, by: Principal) -> View:
    """One delivery with all attempts, oldest first. Raises NotFound."""
    conditions = (*_of_webhook(webhook), DELIVERIES.c.id == delivery_id.lower())
    row = db.connection().execute(_with_last_attempt().where(*conditions)).mappings().first()
    if row is None:
        raise NotFound("No delivery with this id.")
    query = sa.select(ATTEMPTS).where(
        ATTEMPTS.c.account_id == webhook.account_id, ATTEMPTS.c.delivery_id == row["id"]
    )
    attempts = db.connection().execute(query.order_by(ATTEMPTS.c.id)).mappings()
    view = _view(row, redaction.Reader(by))
    attempt_views = [_attempt_view(attempt, view["hidden_by"]) for attempt in attempts]
    return {**view, "attempts": attempt_views}


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


def next_request(webhook: Webhook, view: View) -> JSONObject | None:
    """The request that the next attempt of a waiting delivery would send now, without its body.

    None if nothing is to be sent, or if its signature is hidden with the payload.
    """
    if view["status"] not in (DeliveryState.PENDING, DeliveryState.RETRYING) or view["hidden_by"]:
        return None
    query = sa.select(*queue.WORK_COLUMNS).where(
        *_of_webhook(webhook), DELIVERIES.c.id == view["id"]
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


def _view(row: Row, reader: redaction.Reader) -> View:
    shown_accounts.note(row["account_id"])
    hidden_by, payload = reader.hidden_by(row), orjson.Fragment(row["payload"])
    if hidden_by:
        payload = orjson.loads(row["payload"])
        payload |= {name: None for name in ("record", "previous") if name in payload}
    details = {"payload": payload, "response_status": row["status_code"], "hidden_by": hidden_by}
    return {**_withheld(row, hidden_by), **details}


def _attempt_view(row: Row, hidden_by: str | None) -> View:
    request = row["request"]
    if hidden_by and request:
        # Who knows the secret could confirm a guess of the payload by its signature.
        headers = request["headers"].items()
        visible = {name: value for name, value in headers if not SIGNATURES.match(name)}
        request = {**request, "headers": visible}
    return {**_withheld(row, hidden_by), "request": request}


def _withheld(row: Row, hidden_by: str | None) -> View:
    # The response may echo the payload.
    return {**row, "response_body": None} if hidden_by else dict(row)
