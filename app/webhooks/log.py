"""The delivery log and redelivery (contract section 8)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import sqlalchemy as sa

from app import clock, db, jobs
from app.auth.principal import Principal
from app.db import counts
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

PIECE, LARGEST_PIECE = 500, 16 * 2**20  # deliveries, and bytes of their payloads
A_WHILE = timedelta(minutes=10)
EARLIEST = datetime(2000, 1, 1, tzinfo=UTC)
Shown = JSONObject
Row = Mapping[Any, Any]


def page(
    wanted: JSONMapping, skip: int, limit: int, *, by: Principal, most: int | None = None
) -> tuple[list[Shown], int]:
    """Deliveries, newest first, and the total (counted up to one more than `most`).

    `wanted` may have account_id, webhook_id, status, event, from_date, to_date and `after`, the id
    of a delivery that all results are newer than.
    """
    mine = [*_visible(by), *_wanted(wanted)]
    total = counts.count_up_to(DELIVERIES, mine, most)
    chosen = _with_last_attempt().where(*mine).order_by(DELIVERIES.c.id.desc())
    found = db.connection().execute(chosen.offset(skip).limit(limit)).mappings()
    reader = redaction.Reader(by)
    return [_shown(row, reader) for row in found], total


def place(newer: int, *, by: Principal) -> str | None:
    """The id of the delivery after the `newer` newest ones, for `after`; None if there are
    fewer.
    """
    found: str | None = counts.value_at_offset(DELIVERIES.c.id, _visible(by), newer)
    return found


def _visible(by: Principal) -> list[Any]:
    return [] if by.account_id is None else [DELIVERIES.c.account_id == by.account_id]


def _wanted(wanted: JSONMapping) -> Iterator[Any]:
    table = DELIVERIES.c
    for name in ("account_id", "webhook_id", "status", "event"):
        if wanted.get(name):
            yield table[name] == wanted[name]
    # Ids begin with their time, so a key finds what was asked for then.
    if wanted.get("from_date"):
        yield table.id >= first_id(wanted["from_date"])
    if wanted.get("to_date"):
        yield table.id < first_id(wanted["to_date"])
    if wanted.get("after"):
        yield table.id > wanted["after"]


def get(webhook: Webhook, delivery_id: str, *, by: Principal) -> Shown:
    """One delivery with all attempts, oldest first. Raises NotFound."""
    one = (*_of(webhook), DELIVERIES.c.id == delivery_id.lower())
    row = db.connection().execute(_with_last_attempt().where(*one)).mappings().first()
    if row is None:
        raise NotFound("No delivery with this id.")
    made = sa.select(ATTEMPTS).where(
        ATTEMPTS.c.account_id == webhook.account_id, ATTEMPTS.c.delivery_id == row["id"]
    )
    attempts = db.connection().execute(made.order_by(ATTEMPTS.c.id)).mappings()
    shown = _shown(row, redaction.Reader(by))
    told = [_withheld(attempt, shown["hidden_by"]) for attempt in attempts]
    return {**shown, "attempts": told}


def redeliver(webhook: Webhook, delivery_id: str, *, by: Principal) -> Shown:
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
                "The payload shows a superadmin's view, and somebody else owns the webhook now."
            )
        viewed = redaction.viewed_by_maker(webhook)
        again = _copies(webhook, DELIVERIES.c.id == row["id"], viewed)
        if not again:
            raise Conflict(delivery.FORMER_MAKER)
        outbox.write(again)
    return get(webhook, again[0]["id"], by=by)


def redeliver_failed(webhook: Webhook, since: datetime, until: datetime | None = None) -> int:
    """Send failed deliveries since a time again; returns how many.

    `sent_again` reports the progress by the moment `until`, by default now.
    """
    _check_enabled(webhook)
    until = until or clock.now()
    counted = sa.select(sa.func.count()).select_from(DELIVERIES)
    failed = _failed_since(webhook, since, until)
    with db.transaction() as session:
        number = session.scalar(counted.where(*failed)) or 0
        asked = {"since": clock.iso(since), "until": clock.iso(until), "webhook_id": webhook.id}
        jobs.enqueue("webhooks.redeliver", asked, account_id=webhook.account_id)
    return number


def sent_again(webhook: Webhook, since: datetime, until: datetime) -> dict[str, int]:
    """The number of redelivered deliveries by status; those not yet queued count as pending."""
    table = DELIVERIES.c
    # Ids begin with their time, so a key finds what was made then, give or take a while.
    first, begun, last = (
        first_id(one) for one in (max(since, EARLIEST) - A_WHILE, until, clock.now() + A_WHILE)
    )
    failed = (table.id.between(first, last), *_failed_since(webhook, since, until))
    to_go = sa.select(sa.func.count()).where(*failed)
    again = (*_of(webhook), table.replay_of.is_not(None), table.id.between(begun, last))
    counted = sa.select(table.status, sa.func.count()).where(*again).group_by(table.status)
    found = {row[0]: row[1] for row in db.connection().execute(counted)}
    found[PENDING] = found.get(PENDING, 0) + (db.connection().scalar(to_go) or 0)
    return {state: found.get(state, 0) for state in STATES}


@jobs.job("webhooks.redeliver")
def _redeliver_pieces(asked: JSONMapping) -> None:
    key = (asked["account_id"], asked["webhook_id"])
    times = (clock.parse(asked["since"]), clock.parse(asked["until"]))
    while True:
        with db.transaction() as session:
            # Locked, so that whoever asks twice at once does not send twice.
            webhook = session.get(Webhook, key, with_for_update=True)
            if webhook is None or not webhook.enabled:
                return
            again = _copies(webhook, *_failed_since(webhook, *times))
            if not again:
                return
            outbox.write(again)


def keep(result: Result) -> None:
    """Record a test, which is not retried."""
    work = result.work
    status = DELIVERED if result.delivered else FAILED
    new = outbox.row(work.account_id, work.webhook_id, work.event, work.payload, status=status)
    new |= {"id": work.id, "claim": work.claim, "last_claim": work.claim, "attempt_number": 1}
    new["delivered_at"] = clock.now() if result.delivered else None
    with db.transaction() as session:
        session.execute(sa.insert(DELIVERIES), [new])
        session.execute(sa.insert(ATTEMPTS), [queue.attempt_row(result)])
        if result.delivered:
            queue.note_health(work.account_id, [result])


def _copies(webhook: Webhook, *which: object) -> list[JSONObject]:
    mine, is_cut = _of(webhook), outbox.payloads_cut(webhook.account_id)
    chosen = sa.select(DELIVERIES).where(*mine, DELIVERIES.c.id.in_(_piece(*mine, *which)))
    return [
        outbox.row(
            row.account_id,
            row.webhook_id,
            row.event,
            payload.cut_text(row.payload) if is_cut else row.payload,
            holds_pii=row.holds_pii,
            superadmin_id=row.superadmin_id,
            viewed_by=row.viewed_by and webhook.created_by,  # who may view it, too
            replay_of=row.replay_of or row.id,
            depth=row.depth,
        )
        for row in db.connection().execute(chosen.order_by(DELIVERIES.c.id))
    ]


def _piece(*which: Any) -> list[str]:
    # As many as memory has room for, and one at least.
    table, ids, left = DELIVERIES.c, list[str](), LARGEST_PIECE
    chosen = sa.select(table.id, table.size).where(*which).order_by(table.id).limit(PIECE)
    for row in db.connection().execute(chosen):
        left -= row.size
        if ids and left < 0:
            break
        ids.append(row.id)
    return ids


def _failed_since(webhook: Webhook, since: datetime, until: datetime) -> tuple[Any, ...]:
    table, account_id = DELIVERIES.c, webhook.account_id
    again, first = DELIVERIES.alias(), DELIVERIES.alias()
    # Of a delivery and its repetitions the last one counts, unless any of them did not fail.
    repeated = sa.exists().where(
        again.c.account_id == account_id,
        again.c.replay_of == sa.func.coalesce(table.replay_of, table.id),
        sa.or_(again.c.status != FAILED, again.c.id > table.id),
    )
    arrived = sa.exists().where(
        first.c.account_id == account_id, first.c.id == table.replay_of, first.c.status != FAILED
    )
    period = (table.created_at >= since, table.created_at <= until)
    fit = [] if visibility.is_sent_pii(webhook) else [~table.holds_pii]
    fit.append(redaction.viewed_by_maker(webhook))
    return (*_of(webhook), *fit, table.status == FAILED, *period, ~repeated, ~arrived)


def _check_enabled(webhook: Webhook) -> None:
    if not webhook.enabled:
        raise Conflict("This webhook is disabled. Enable it first.")


def _of(webhook: Webhook) -> list[Any]:
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


def _shown(row: Row, reader: redaction.Reader) -> Shown:
    hidden_by, shown = reader.hidden_by(row), orjson.Fragment(row["payload"])
    if hidden_by:
        shown = orjson.loads(row["payload"])
        shown |= {name: None for name in ("record", "previous") if name in shown}
    about = {"payload": shown, "response_status": row["status_code"], "hidden_by": hidden_by}
    return {**_withheld(row, hidden_by), **about}


def _withheld(answer: Row, hidden_by: str | None) -> Shown:
    # A receiver may answer with what it was sent.
    return {**answer, "response_body": None} if hidden_by else dict(answer)
