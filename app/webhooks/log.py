"""The delivery log and redelivery (contract section 8)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import sqlalchemy as sa

from app import clock, db, jobs
from app.auth.principal import Principal
from app.db import counts, filters
from app.errors import Conflict, NotFound
from app.ids import first_id
from app.types import JSONMapping, JSONObject
from app.webhooks import delivery, outbox, payload, queue, redaction, visibility
from app.webhooks.models import (
    ATTEMPTS,
    DELIVERED,
    DELIVERIES,
    FAILED,
    PENDING,
    STATES,
    Webhook,
)
from app.webhooks.queue import Result

BATCH_SIZE, MAX_BATCH_BYTES = 500, 16 * 2**20  # deliveries, and bytes of their payloads
CLOCK_TOLERANCE = timedelta(minutes=10)
EARLIEST = datetime(2000, 1, 1, tzinfo=UTC)
View = JSONObject
Row = sa.RowMapping


def page(
    filters: JSONMapping,
    skip: int,
    limit: int,
    *,
    by: Principal,
    max_total: int | None = None,
) -> tuple[list[View], int]:
    """Deliveries, newest first, and the total (counted up to one more than `max_total`).

    `wanted` may have account_id, webhook_id, status, event, from_date, to_date and `after`, the id
    of a delivery that all results are newer than.
    """
    conditions = [*_visible(by), *_conditions(filters)]
    total = counts.count_up_to(DELIVERIES, conditions, max_total)
    query = _with_last_attempt().where(*conditions).order_by(DELIVERIES.c.id.desc())
    rows = db.connection().execute(query.offset(skip).limit(limit)).mappings()
    reader = redaction.Reader(by)
    return [_view(row, reader) for row in rows], total


def place(newer: int, *, by: Principal) -> str | None:
    """The id of the delivery after the `newer` newest ones, for `after`; None if there are
    fewer.
    """
    delivery_id: str | None = counts.value_at_offset(DELIVERIES.c.id, _visible(by), newer)
    return delivery_id


def _visible(by: Principal) -> list[Any]:
    return [] if by.account_id is None else [DELIVERIES.c.account_id == by.account_id]


def _conditions(query: JSONMapping) -> Iterator[object]:
    yield from filters.log_conditions(
        DELIVERIES, query, ("account_id", "webhook_id", "status", "event")
    )
    if query.get("after"):
        yield DELIVERIES.c.id > query["after"]


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
    attempt_views = [_withheld(attempt, view["hidden_by"]) for attempt in attempts]
    return {**view, "attempts": attempt_views}


def redeliver(webhook: Webhook, delivery_id: str, *, by: Principal) -> View:
    """Send a delivery again under a new id. Raises NotFound, Conflict."""
    _check_enabled(webhook)
    with db.transaction():
        row = get(webhook, delivery_id, by=by)
        if row["status"] == PENDING:
            raise Conflict("This delivery is still pending.")
        if row["holds_pii"] and not visibility.is_sent_pii(webhook):
            raise Conflict(
                "The payload has personal data, which this webhook may no longer receive."
            )
        if row["superadmin_id"] not in (None, webhook.created_by):
            raise Conflict(
                "The payload shows a superadmin's view, and the webhook has another owner now."
            )
        may_view = redaction.may_be_received(webhook)
        copies = _copies(webhook, DELIVERIES.c.id == row["id"], may_view)
        if not copies:
            raise Conflict(delivery.PREVIOUS_OWNER)
        outbox.write(copies)
    return get(webhook, copies[0]["id"], by=by)


def redeliver_failed(webhook: Webhook, since: datetime, until: datetime | None = None) -> int:
    """Send failed deliveries since a time again; returns how many.

    `redelivery_counts` reports the progress for the same `until` (default: now).
    """
    _check_enabled(webhook)
    until = until or clock.now()
    query = sa.select(sa.func.count()).select_from(DELIVERIES)
    failed = _failed_since(webhook, since, until)
    with db.transaction() as session:
        count = session.scalar(query.where(*failed)) or 0
        job_payload = {
            "since": clock.iso(since),
            "until": clock.iso(until),
            "webhook_id": webhook.id,
        }
        jobs.enqueue("webhooks.redeliver", job_payload, account_id=webhook.account_id)
    return count


def redelivery_counts(webhook: Webhook, since: datetime, until: datetime) -> dict[str, int]:
    """The number of redelivered deliveries by status; those not yet queued count as pending."""
    table = DELIVERIES.c
    # Ids begin with their time, so the primary key finds them, with a tolerance for clocks.
    first_key, start_key, last_key = (
        first_id(moment)
        for moment in (max(since, EARLIEST) - CLOCK_TOLERANCE, until, clock.now() + CLOCK_TOLERANCE)
    )
    failed = (table.id.between(first_key, last_key), *_failed_since(webhook, since, until))
    not_queued = sa.select(sa.func.count()).where(*failed)
    replayed = (
        *_of_webhook(webhook),
        table.replay_of.is_not(None),
        table.id.between(start_key, last_key),
    )
    query = sa.select(table.status, sa.func.count()).where(*replayed).group_by(table.status)
    by_status = {row[0]: row[1] for row in db.connection().execute(query)}
    by_status[PENDING] = by_status.get(PENDING, 0) + (db.connection().scalar(not_queued) or 0)
    return {state: by_status.get(state, 0) for state in STATES}


@jobs.job("webhooks.redeliver")
def _redeliver_batches(payload: JSONMapping) -> None:
    key = (payload["account_id"], payload["webhook_id"])
    times = (clock.parse(payload["since"]), clock.parse(payload["until"]))
    while True:
        with db.transaction() as session:
            # Locked, so that concurrent requests do not send twice.
            webhook = session.get(Webhook, key, with_for_update=True)
            if webhook is None or not webhook.enabled:
                return
            copies = _copies(webhook, *_failed_since(webhook, *times))
            if not copies:
                return
            outbox.write(copies)


def record_test(result: Result) -> None:
    """Record a test, which is not retried."""
    work = result.work
    status = DELIVERED if result.delivered else FAILED
    row = outbox.row(work.account_id, work.webhook_id, work.event, work.payload, status=status)
    row |= {"id": work.id, "claim": work.claim, "last_claim": work.claim, "attempt_number": 1}
    row["delivered_at"] = clock.now() if result.delivered else None
    with db.transaction() as session:
        session.execute(sa.insert(DELIVERIES), [row])
        session.execute(sa.insert(ATTEMPTS), [queue.attempt_row(result)])
        if result.delivered:
            queue.note_health(work.account_id, [result])


def _copies(webhook: Webhook, *conditions: object) -> list[JSONObject]:
    same_webhook, is_cut = _of_webhook(webhook), outbox.payloads_cut(webhook.account_id)
    query = sa.select(DELIVERIES).where(
        *same_webhook, DELIVERIES.c.id.in_(_batch_ids(*same_webhook, *conditions))
    )
    return [
        outbox.row(
            row.account_id,
            row.webhook_id,
            row.event,
            payload.cut_text(row.payload) if is_cut else row.payload,
            holds_pii=row.holds_pii,
            superadmin_id=row.superadmin_id,
            viewed_by=row.viewed_by and webhook.created_by,  # who may view it, as checked
            replay_of=row.replay_of or row.id,
            depth=row.depth,
        )
        for row in db.connection().execute(query.order_by(DELIVERIES.c.id))
    ]


def _batch_ids(*conditions: Any) -> list[str]:
    # Limited by size, but at least one.
    table, ids, remaining = DELIVERIES.c, list[str](), MAX_BATCH_BYTES
    query = sa.select(table.id, table.size).where(*conditions).order_by(table.id).limit(BATCH_SIZE)
    for row in db.connection().execute(query):
        remaining -= row.size
        if ids and remaining < 0:
            break
        ids.append(row.id)
    return ids


def _failed_since(webhook: Webhook, since: datetime, until: datetime) -> tuple[Any, ...]:
    table, account_id = DELIVERIES.c, webhook.account_id
    later, original = DELIVERIES.alias(), DELIVERIES.alias()
    # Only the last of a delivery and its replays, and only if all of them failed.
    repeated = sa.exists().where(
        later.c.account_id == account_id,
        later.c.replay_of == sa.func.coalesce(table.replay_of, table.id),
        sa.or_(later.c.status != FAILED, later.c.id > table.id),
    )
    original_succeeded = sa.exists().where(
        original.c.account_id == account_id,
        original.c.id == table.replay_of,
        original.c.status != FAILED,
    )
    period = (table.created_at >= since, table.created_at <= until)
    receivable = [] if visibility.is_sent_pii(webhook) else [~table.holds_pii]
    receivable.append(redaction.may_be_received(webhook))
    return (
        *_of_webhook(webhook),
        *receivable,
        table.status == FAILED,
        *period,
        ~repeated,
        ~original_succeeded,
    )


def _check_enabled(webhook: Webhook) -> None:
    if not webhook.enabled:
        raise Conflict("This webhook is disabled. Enable it first.")


def _of_webhook(webhook: Webhook) -> list[Any]:
    table = DELIVERIES.c
    return [table.account_id == webhook.account_id, table.webhook_id == webhook.id]


def _with_last_attempt() -> sa.Select[Any]:
    last = sa.and_(
        ATTEMPTS.c.account_id == DELIVERIES.c.account_id,
        ATTEMPTS.c.delivery_id == DELIVERIES.c.id,
        ATTEMPTS.c.claim == DELIVERIES.c.last_claim,
    )
    answer = (ATTEMPTS.c.status_code, ATTEMPTS.c.response_body, ATTEMPTS.c.error)
    joined = DELIVERIES.outerjoin(ATTEMPTS, last)
    return sa.select(DELIVERIES, *answer).select_from(joined)


def _view(row: Row, reader: redaction.Reader) -> View:
    hidden_by, payload = reader.hidden_by(row), orjson.Fragment(row["payload"])
    if hidden_by:
        payload = orjson.loads(row["payload"])
        payload |= {name: None for name in ("record", "previous") if name in payload}
    details = {"payload": payload, "response_status": row["status_code"], "hidden_by": hidden_by}
    return {**_withheld(row, hidden_by), **details}


def _withheld(row: Row, hidden_by: str | None) -> View:
    # The response may echo the payload.
    return {**row, "response_body": None} if hidden_by else dict(row)
