"""The last verification of each chain, and its result.

Whoever owns the database can write these rows: they say that the periodic verification runs, and
prove nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from app import clock, db
from app.audit.models import AuditChange, AuditHead, ChainVerification, PendingChange
from app.context import tenancy
from app.db import Base
from app.web.feature import Finding

AUDIT, SECURITY = "audit", "security"
TABLE = Base.metadata.tables[ChainVerification.__tablename__]
KEY = ("account_id", "log")
LATE = timedelta(minutes=5)
"""Changes that wait longer for their place in the log are reported by `doctor`."""
MAX_NAMED = 5  # chains that `doctor` names


@dataclass(frozen=True)
class Verification:
    """The last verification of a chain."""

    account_id: str
    log: str
    verified_at: datetime
    is_valid: bool
    checked: int
    broken_id: int | None
    reason: str | None


def store(log: str, account_id: str, report: Any) -> None:
    """Store the result of a verification that has just ended; `report` is a `verify.Report`."""
    found = {"is_valid": report.valid, "checked": report.checked, "reason": report.reason}
    found |= {"broken_id": report.first_broken_id, "verified_at": clock.now()}
    insert = sqlite.insert if db.has_one_writer() else postgresql.insert
    row = insert(TABLE).values(account_id=account_id, log=log, **found)
    stored = row.on_conflict_do_update(
        index_elements=KEY, set_={name: row.excluded[name] for name in found}
    )
    # Not in the account: entries that somebody forged may name none.
    with tenancy.across_accounts(), db.transaction() as session:
        session.execute(stored)


def last(log: str, account_id: str) -> Verification | None:
    """The last verification of an account's chain."""
    own = (TABLE.c.account_id == account_id, TABLE.c.log == log)
    return next(iter(_read(*own)), None)


def of_accounts(log: str, account_ids: Iterable[str]) -> dict[str, Verification]:
    """The last verifications of these accounts' chains, by account."""
    own = (TABLE.c.account_id.in_(list(account_ids)), TABLE.c.log == log)
    return {found.account_id: found for found in _read(*own)}


@dataclass(frozen=True)
class Counts:
    """The number of chains of the audit log, by the result of their last verification."""

    chains: int
    verified: int
    broken: int


def counts() -> Counts:
    """The counts of all accounts."""
    own = (TABLE.c.account_id == AuditHead.account_id) & (TABLE.c.log == AUDIT)
    is_broken = sa.case((TABLE.c.is_valid.is_(False), 1))
    found = sa.select(sa.func.count(), sa.func.count(TABLE.c.account_id), sa.func.count(is_broken))
    query = found.select_from(AuditHead).outerjoin(TABLE, own)
    return Counts(*db.connection().execute(query).one())


def broken(limit: int) -> list[Verification]:
    """Some chains that were broken when they were last verified."""
    return _read(TABLE.c.is_valid.is_(False), limit=limit)


def recent(age: timedelta) -> sa.Select[str]:
    """The accounts with a chain of the audit log that was verified within this time."""
    since = TABLE.c.verified_at > clock.now() - age
    return sa.select(TABLE.c.account_id).where(TABLE.c.log == AUDIT, since)


def check() -> Finding:
    """Check the end of each chain only; `bin/atrium audit verify` checks all of it."""
    mine = AuditChange.account_id == AuditHead.account_id
    newest = sa.select(sa.func.max(AuditChange.first_id)).where(mine).scalar_subquery()
    last = AuditHead.__table__.outerjoin(
        AuditChange, sa.and_(mine, AuditChange.first_id == newest.correlate(AuditHead))
    )
    columns = (AuditHead.account_id, AuditHead.last_id, AuditHead.checksum)
    stored = (AuditChange.last_id.label("stored_id"), AuditChange.checksum.label("stored"))
    rows = db.connection().execute(sa.select(*columns, *stored).select_from(last))
    heads = (
        row.account_id
        for row in rows
        if (row.stored_id, (row.stored or b"").hex()) != (row.last_id, row.checksum)
    )
    differing = list(islice(heads, MAX_NAMED))
    if differing:
        message = f"the chain of {', '.join(differing)} is broken: run bin/atrium audit verify"
        return Finding("fail", message)
    for found in broken(1):
        message = (
            f"the {found.log} log of {found.account_id} was broken at entry {found.broken_id}"
            f" when it was verified at {clock.iso(found.verified_at)}: {found.reason}"
        )
        return Finding("fail", message)
    waiting = sa.select(PendingChange.account_id, PendingChange.occurred_at)
    late = waiting.where(PendingChange.occurred_at < clock.now() - LATE)
    if oldest := db.connection().execute(late.order_by(PendingChange.occurred_at).limit(1)).first():
        since = clock.iso(oldest.occurred_at)
        message = f"changes of {oldest.account_id} have no place in the log since {since}"
        return Finding("warn", f"{message}: a worker has to run, and its log says what fails")
    return Finding("ok", "every chain matches its head")


def _read(*where: sa.ColumnElement[bool], limit: int | None = None) -> list[Verification]:
    query = sa.select(TABLE).where(*where).order_by(TABLE.c.account_id, TABLE.c.log).limit(limit)
    return [Verification(**row) for row in db.connection().execute(query).mappings()]
