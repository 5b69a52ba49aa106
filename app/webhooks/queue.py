"""Deliveries as a work queue: what is due, whose turn it is, and what came of it (spec 6.5-6.7)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa
from cryptography.fernet import InvalidToken
from sqlalchemy.dialects import postgresql, sqlite

from app import clock, config, crypto, db, leases
from app.webhooks.models import (
    ATTEMPTS,
    DELIVERED,
    DELIVERIES,
    FAILED,
    QUEUE,
    RETRYING,
    Webhook,
)

DISABLE_AFTER_SECONDS = 5 * 86400
WEBHOOKS: Any = Webhook.__table__


@dataclass(frozen=True)
class Target:
    """Where deliveries of a webhook go, and the keys that sign them, newest first."""

    url: str
    keys: tuple[str, ...]
    headers: Mapping[str, str]
    enabled: bool = True
    failing: bool = False
    to_be_disabled: bool = False


@dataclass(frozen=True)
class Work:
    """A delivery that this process has claimed."""

    account_id: str
    id: str
    claim: int
    webhook_id: str
    event: str
    payload: str
    attempt_number: int  # how many there were before
    replay_of: str | None
    target: Target | None


@dataclass(frozen=True)
class Result:
    """One attempt, and what came back."""

    work: Work
    id: str
    attempted_at: datetime
    duration_ms: int
    status_code: int | None = None
    response_body: str | None = None
    error: str | None = None
    final: bool = False
    """Whether another attempt would be of no use."""

    @property
    def delivered(self) -> bool:
        """Whether the receiver took it: any 2xx."""
        return self.status_code is not None and 200 <= self.status_code < 300


class Outcome(NamedTuple):
    """What becomes of a delivery: its status, and the seconds until the next attempt if any."""

    status: str
    delay: int | None


def look(limit: int, passing_over: Collection[str]) -> Sequence[sa.Row[Any]]:
    """Due deliveries of all accounts, but not of the webhooks that have enough to do."""
    others = DELIVERIES.c.webhook_id.not_in(sorted(passing_over)) if passing_over else None
    columns = (DELIVERIES.c.webhook_id, DELIVERIES.c.size)
    return leases.look(QUEUE, limit, *columns, where=others)


def claim(account_id: str, ids: Sequence[str], seconds: int) -> list[Work]:
    """Take those of an account's deliveries that are still due."""
    names = ("webhook_id", "event", "payload", "attempt_number", "replay_of")
    columns = [DELIVERIES.c[name] for name in names]
    taken = leases.claim(QUEUE, account_id, ids, seconds, *columns)
    known = targets(account_id, {row.webhook_id for row in taken}) if taken else {}
    return [Work(**row._asdict(), target=known.get(row.webhook_id)) for row in taken]


def release(work: Iterable[Work]) -> None:
    """Give back what was claimed but not tried."""
    for account_id, mine in by_account(work).items():
        change = sa.update(DELIVERIES).where(*_held(account_id, mine))
        with db.transaction() as session:
            session.execute(change.values(due_at=db.database_now()))


def by_account(work: Iterable[Work]) -> dict[str, list[Work]]:
    """The same, account by account in the order of their ids."""
    found: dict[str, list[Work]] = {}
    for one in sorted(work, key=lambda one: one.account_id):
        found.setdefault(one.account_id, []).append(one)
    return found


def targets(account_id: str, ids: Iterable[str]) -> dict[str, Target]:
    """Where the deliveries of these webhooks go now."""
    failing = WEBHOOKS.c.failing_since
    late = failing <= db.database_now(-DISABLE_AFTER_SECONDS)
    chosen = sa.select(WEBHOOKS, late.label("late")).where(
        WEBHOOKS.c.account_id == account_id, WEBHOOKS.c.id.in_(list(ids))
    )
    return {row.id: _target(row) for row in db.connection().execute(chosen)}


def _target(row: Any) -> Target:
    keys = [row.secret]
    if row.previous_secret and row.previous_valid_until > clock.now():
        keys.append(row.previous_secret)
    return Target(
        url=row.url,
        keys=_readable(keys),
        headers=row.headers or {},
        enabled=row.enabled,
        failing=row.failing_since is not None,
        to_be_disabled=bool(row.late),
    )


def _readable(stored: Sequence[str]) -> tuple[str, ...]:
    try:
        return tuple(crypto.decrypt(key) for key in stored)
    except InvalidToken:  # encrypted with a key that the settings do not name any more
        return ()


def outcome(result: Result) -> Outcome:
    """What becomes of a delivery after an attempt (spec 6.6)."""
    if result.delivered:
        return Outcome(DELIVERED, None)
    delays, retries = config.current().webhook_retry_delays, result.work.attempt_number
    if result.final or retries >= len(delays):
        return Outcome(FAILED, None)
    return Outcome(RETRYING, delays[retries])


def record(account_id: str, results: Sequence[Result]) -> None:
    """Write down attempts of one account's deliveries; written twice, they count once."""
    groups: dict[Outcome, list[Result]] = {}
    for result in results:
        groups.setdefault(outcome(result), []).append(result)
    with db.transaction() as session:
        session.execute(_new_attempts(), [attempt_row(result) for result in results])
        for found, group in groups.items():
            held = _held(account_id, [result.work for result in group])
            session.execute(sa.update(DELIVERIES).where(*held).values(_values(found)))
        _note_health(account_id, results)


def _held(account_id: str, work: Sequence[Work]) -> tuple[Any, ...]:
    # A worker whose lease ran out, and whom another replaced, changes nothing any more.
    table = DELIVERIES.c
    pairs = sa.tuple_(table.id, table.claim).in_([(one.id, one.claim) for one in work])
    unwritten = sa.or_(table.last_claim.is_(None), table.last_claim < table.claim)
    return (table.account_id == account_id, table.due_at.is_not(None), pairs, unwritten)


def _values(found: Outcome) -> dict[Any, Any]:
    due_at = None if found.delay is None else db.database_now(found.delay)
    return {
        "status": found.status,
        "attempt_number": DELIVERIES.c.attempt_number + 1,
        "last_claim": DELIVERIES.c.claim,
        "due_at": due_at,
        "next_retry_at": due_at,
        "delivered_at": clock.now() if found.status == DELIVERED else None,
    }


def _new_attempts() -> Any:
    dialect: Any = sqlite if db.db.engine.dialect.name == "sqlite" else postgresql
    return dialect.insert(ATTEMPTS).on_conflict_do_nothing()


def attempt_row(result: Result) -> dict[str, Any]:
    """What is kept of an attempt."""
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
    }


def _note_health(account_id: str, results: Sequence[Result]) -> None:
    tried = [result for result in results if result.work.target and not result.final]
    well = {result.work.webhook_id for result in tried if result.delivered}
    recovered = {r.work.webhook_id for r in tried if r.delivered and _failing(r)}
    broken = {r.work.webhook_id for r in tried if not r.delivered and not _failing(r)} - well
    for ids, since, before in (
        (recovered, None, WEBHOOKS.c.failing_since.is_not(None)),
        (broken, db.database_now(), WEBHOOKS.c.failing_since.is_(None)),
    ):
        if ids:
            mine = (WEBHOOKS.c.account_id == account_id, WEBHOOKS.c.id.in_(sorted(ids)), before)
            changed = sa.update(WEBHOOKS).where(*mine).values(failing_since=since)
            # Not a change of the webhook itself, which `updated_at` tells of.
            db.connection().execute(changed)


def _failing(result: Result) -> bool:
    return result.work.target is not None and result.work.target.failing
