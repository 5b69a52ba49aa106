"""The work queue of deliveries: due rows, claims and results."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

import sqlalchemy as sa
from cryptography.fernet import InvalidToken
from sqlalchemy.dialects import postgresql, sqlite

from app import clock, crypto, db, jobs
from app.context import tenancy, trigger_depth
from app.db import engine
from app.db.functions import database_now, now_if
from app.jobs import leases
from app.jobs.rq_queues import WEBHOOKS as WEBHOOKS_QUEUE
from app.types import JSONObject
from app.webhooks import delivery, headers, visibility
from app.webhooks.delivery import Outcome, Result, Target, Work
from app.webhooks.models import (
    ATTEMPTS,
    DELIVERIES,
    IS_UNFINISHED,
    QUEUE,
    DeliveryState,
    Webhook,
    WebhookVersion,
)

WEBHOOKS: Any = Webhook.__table__
CONTENT = ("webhook_id", "event", "payload", "attempt_number", "replay_of")
VIEWERS = ("holds_pii", "superadmin_id", "viewed_by", "depth", "of_account")
CONTENT_COLUMNS = [DELIVERIES.c[name] for name in (*CONTENT, *VIEWERS)]
WORK_COLUMNS = [DELIVERIES.c.account_id, DELIVERIES.c.id, DELIVERIES.c.claim, *CONTENT_COLUMNS]


def look(
    limit: int, passing_over: Collection[str], accounts: Sequence[str] | None = None
) -> Sequence[sa.Row[Any]]:
    """Due deliveries of these or all accounts, without those of webhooks with a full lane."""
    others = DELIVERIES.c.webhook_id.not_in(sorted(passing_over)) if passing_over else sa.true()
    theirs = DELIVERIES.c.account_id.in_(accounts) if accounts is not None else sa.true()
    columns = (DELIVERIES.c.webhook_id, DELIVERIES.c.size)
    return leases.find_due(QUEUE, limit, *columns, where=sa.and_(others, theirs))


def accounts_due() -> list[tuple[str]]:
    """The accounts with due deliveries."""
    return leases.accounts_due(QUEUE)


def claim(account_id: str, ids: Sequence[str], seconds: int) -> list[Work]:
    """Claim those of an account's deliveries that are still due."""
    taken = leases.claim(QUEUE, account_id, ids, seconds, *CONTENT_COLUMNS)
    claimed = [work(**row._asdict()) for row in taken]
    withheld = not_sent_pii(account_id, claimed)
    return [replace(one, pii_withheld=one.webhook_id in withheld) for one in claimed]


def not_sent_pii(account_id: str, work: Sequence[Work]) -> set[str]:
    """The webhooks of these deliveries that may no longer receive personal data."""
    named = {one.webhook_id for one in work if one.holds_pii}
    if not named:
        return set()
    mine = (WEBHOOKS.c.account_id == account_id, WEBHOOKS.c.id.in_(sorted(named)))
    rows = db.connection().execute(sa.select(WEBHOOKS).where(*mine)).all()
    return named - {row.id for row in rows if visibility.is_sent_pii(row)}


def work(depth: int, **values: Any) -> Work:
    """A delivery as it is sent, from a row of WORK_COLUMNS."""
    return Work(**values, depth_headers=trigger_depth.headers(depth))


def release(work: Iterable[Work]) -> None:
    """Release claimed deliveries that were not attempted."""
    for account_id, mine in by_account(work).items():
        leases.release(QUEUE, account_id, _claims(mine))


def by_account(work: Iterable[Work]) -> dict[str, list[Work]]:
    """Deliveries grouped by account, in the order of account ids."""
    found: dict[str, list[Work]] = {}
    for one in sorted(work, key=lambda one: one.account_id):
        found.setdefault(one.account_id, []).append(one)
    return found


def versions(account_ids: Sequence[str]) -> dict[str, int]:
    """The current webhook version of each account."""
    table: Any = WebhookVersion.__table__
    chosen = sa.select(table).where(table.c.account_id.in_(account_ids))
    return {row.account_id: row.version for row in db.connection().execute(chosen)}


def targets(account_id: str) -> dict[str, Target]:
    """The current targets of an account's webhooks, by webhook id."""
    chosen = sa.select(WEBHOOKS).where(WEBHOOKS.c.account_id == account_id)
    return {row.id: target(row) for row in db.connection().execute(chosen)}


def target(webhook: Any) -> Target:
    """The target of a webhook."""
    return Target(
        url=webhook.url,
        secret=_readable(webhook.secret),
        previous=_readable(webhook.previous_secret),
        previous_until=webhook.previous_valid_until,
        headers=headers.decrypted(webhook.headers),
        enabled=webhook.enabled and webhook.paused_at is None,
        include_pii=webhook.include_pii,
        created_by=webhook.created_by,
    )


def _readable(stored: str | None) -> str | None:
    try:
        return crypto.decrypt(stored) if stored else None
    except InvalidToken:  # encrypted with a key that the settings do not name any more
        return None


def record(account_id: str, results: Sequence[Result]) -> None:
    """Record attempts of one account's deliveries; recording them twice has no effect."""
    _hold(account_id, [result.work for result in results if result.held])
    results = [result for result in results if not result.held]
    if not results:
        return
    groups: dict[Outcome, list[Work]] = {}
    for result in results:
        groups.setdefault(delivery.outcome(result), []).append(result.work)
    if engine.current_engine().dialect.name == "sqlite":
        # Its driver keeps a statement for each number of rows.
        insert: Any = sqlite.insert(ATTEMPTS).on_conflict_do_nothing()
    else:
        # With something to return, all rows go in one statement.
        insert = postgresql.insert(ATTEMPTS).on_conflict_do_nothing().returning(ATTEMPTS.c.id)
    with tenancy.in_account(account_id), db.transaction() as session:
        ended = [result.work for result in results if delivery.outcome(result).delay is None]
        in_order = [(one.webhook_id, one.of_account) for one in ended if one.of_account]
        if in_order:  # before what is next is looked for: nobody adds anything meanwhile
            _lock({webhook_id for webhook_id, _ in in_order}, account_id)
        session.execute(insert, [attempt_row(result) for result in results])
        for found, group in groups.items():
            due_at = None if found.delay is None else database_now(found.delay)
            is_delivered = found.status == DeliveryState.DELIVERED
            values = {
                "status": found.status,
                "attempt_number": DELIVERIES.c.attempt_number + 1,
                "last_claim": DELIVERIES.c.claim,
                "due_at": due_at,
                "next_retry_at": due_at,
                "delivered_at": clock.now() if is_delivered else None,
            }
            leases.change(QUEUE, account_id, _claims(group), values)
            if found.delay is not None:
                jobs.announce_on_commit(WEBHOOKS_QUEUE, account_id, seconds=found.delay)
        start_next(account_id, in_order)
        note_health(account_id, results)


def _lock(webhook_ids: Iterable[str], account_id: str) -> Sequence[sa.Row[Any]]:
    columns = (WEBHOOKS.c.id, WEBHOOKS.c.enabled, WEBHOOKS.c.paused_at)
    own = (WEBHOOKS.c.account_id == account_id, WEBHOOKS.c.id.in_(sorted(webhook_ids)))
    query = sa.select(*columns).where(*own).order_by(WEBHOOKS.c.id)
    return db.connection().execute(query.with_for_update()).all()


def start_next(account_id: str, in_order: Iterable[tuple[str, str]]) -> None:
    """Make the oldest delivery due of each webhook and account whose events it gets in order.

    The webhooks are locked, so that none comes between.
    """
    pairs = sorted(set(in_order))
    if not pairs:
        return
    rows = _lock({webhook_id for webhook_id, _ in pairs}, account_id)
    sending = {row.id for row in rows if row.enabled and not row.paused_at}
    table, ids = DELIVERIES.c, list[str]()
    for webhook_id, of_account in pairs:
        own = (table.account_id == account_id, table.webhook_id == webhook_id)
        query = sa.select(table.id, table.due_at).where(*own, table.of_account == of_account)
        oldest = query.where(IS_UNFINISHED).order_by(table.event_number).limit(1)
        first = db.connection().execute(oldest).first() if webhook_id in sending else None
        if first is not None and first.due_at is None:
            ids.append(first.id)
    if ids:
        own = (table.account_id == account_id, table.id.in_(ids))
        db.connection().execute(sa.update(DELIVERIES).where(*own).values(due_at=database_now()))
        jobs.announce_on_commit(WEBHOOKS_QUEUE, account_id)


def _hold(account_id: str, work: Sequence[Work]) -> None:
    """Keep deliveries of disabled webhooks in their status until the webhook is enabled."""
    if not work:
        return
    with db.transaction():
        # Locked: who enables one either is seen here, or finds what is held.
        rows = _lock({one.webhook_id for one in work}, account_id)
        sending = [row.id for row in rows if row.enabled and not row.paused_at]
        due_at = now_if(DELIVERIES.c.webhook_id.in_(sending))
        values = {"due_at": due_at, "next_retry_at": None}
        leases.change(QUEUE, account_id, _claims(work), values)


def lay_by(account_id: str, webhook_id: str) -> None:
    """Suspend deliveries that no worker has started, in the transaction that disables a webhook."""
    table = DELIVERIES.c
    mine = (table.account_id == account_id, table.webhook_id == webhook_id)
    idle = (table.due_at.is_not(None), table.claim <= sa.func.coalesce(table.last_claim, 0))
    changed = sa.update(DELIVERIES).where(*mine, *idle)
    db.connection().execute(changed.values(due_at=None, next_retry_at=None))


def resume(account_id: str, webhook_id: str) -> None:
    """Make suspended deliveries due, in the transaction that enables the webhook."""
    table = DELIVERIES.c
    mine = (table.account_id == account_id, table.webhook_id == webhook_id)
    waiting = (
        table.due_at.is_(None),
        table.status.in_((DeliveryState.PENDING, DeliveryState.RETRYING)),
    )
    changed = sa.update(DELIVERIES).where(*mine, *waiting, table.of_account.is_(None))
    db.connection().execute(changed.values(due_at=database_now()))
    accounts = sa.select(table.of_account).where(*mine, IS_UNFINISHED).distinct()
    in_order = db.connection().scalars(accounts.where(table.of_account.is_not(None))).all()
    start_next(account_id, [(webhook_id, one) for one in in_order])
    jobs.announce_on_commit(WEBHOOKS_QUEUE, account_id)


def _claims(work: Iterable[Work]) -> list[tuple[str, int]]:
    return [(one.id, one.claim) for one in work]


def attempt_row(result: Result) -> JSONObject:
    """The row of an attempt."""
    return {
        "account_id": result.work.account_id,
        "id": result.id,
        "delivery_id": result.work.id,
        "claim": result.work.claim,
        "attempt_number": result.work.attempt_number + 1,
        "status_code": result.status_code,
        "response_body": result.response_body,
        "error": result.error,
        "duration_ms": result.duration_ms,
        "attempted_at": result.attempted_at,
        "request": result.request,
    }


def note_health(account_id: str, results: Sequence[Result]) -> None:
    """Update since when all attempts of a webhook fail, in the open transaction."""
    tried = [result for result in results if not result.final]
    well = {result.work.webhook_id for result in tried if result.delivered}
    broken = {result.work.webhook_id for result in tried} - well
    since = WEBHOOKS.c.failing_since
    for ids, value, before in (
        (well, None, since.is_not(None)),
        (broken, database_now(), since.is_(None)),
    ):
        if ids:
            mine = (WEBHOOKS.c.account_id == account_id, WEBHOOKS.c.id.in_(sorted(ids)), before)
            changed = sa.update(WEBHOOKS).where(*mine).values(failing_since=value)
            # Not a change of the webhook itself, which `updated_at` tells of.
            db.connection().execute(changed)
