"""The audit log as a log with a chain (`app/audit/chain`)."""

from __future__ import annotations

import sqlalchemy as sa

from app import db
from app.audit import append, checkpoints, entries, sealing, verifications
from app.audit.chain.log import LOWEST, Log
from app.audit.entries import CHANGES, HEADS, STARTS
from app.audit.models import AuditCheckpoint
from app.db import Base
from app.types import JSONObject

CHECKPOINTS = Base.metadata.tables[AuditCheckpoint.__tablename__]


def _read(
    account_id: str,
    *,
    after: int = LOWEST,
    until: int | None = None,
    limit: int = entries.BATCH_SIZE,
) -> list[JSONObject]:
    place = [CHANGES.c.account_id == account_id, CHANGES.c.first_id > after]
    if until is not None:
        place.append(CHANGES.c.last_id <= until)
    query = sa.select(*entries.columns()).where(*place).order_by(CHANGES.c.first_id).limit(limit)
    return [row._asdict() for row in db.connection().execute(query)]


def _accounts() -> set[str]:
    found = set(db.connection().scalars(sa.select(HEADS.c.account_id)))
    found.update(db.connection().scalars(sa.select(CHECKPOINTS.c.account_id).distinct()))
    found.update(sealing.due())
    account, last = CHANGES.c.account_id, ""
    while True:  # an index skip scan
        smallest = sa.select(sa.func.min(account)).where(account > last)
        if (last := db.connection().scalar(smallest)) is None:
            return found
        found.add(last)


def _end(account_id: str) -> int:
    newest = sa.select(HEADS.c.last_id).where(HEADS.c.account_id == account_id)
    return db.connection().scalar(newest) or 0


def _record_cut(account_id: str, last_id: int, count: int) -> None:
    before = (CHECKPOINTS.c.account_id == account_id, CHECKPOINTS.c.entry_id <= last_id)
    db.connection().execute(sa.delete(CHECKPOINTS).where(*before))
    behind = (HEADS.c.account_id == account_id, HEADS.c.expired_change < last_id)
    db.connection().execute(sa.update(HEADS).where(*behind).values(expired_change=last_id))
    value, about = ("id", str(last_id), None), {"count": count}
    # The log must say that it was cut even if auditing is off.
    target = (append.DELETE, "audit_log", str(last_id))
    append.record(append.Change(account_id, target, [value], about), always=True)


AUDIT = Log(
    name=verifications.AUDIT,
    rows=CHANGES,
    first="first_id",
    last="last_id",
    size=CHANGES.c.entries,
    heads=HEADS,
    head_id="last_id",
    starts=STARTS,
    read=_read,
    entries_of=entries.of_change,
    accounts=_accounts,
    checkpoints=checkpoints.for_account,
    pending=sealing.PENDING,
    settle=sealing.settle,
    end=_end,
    record_cut=_record_cut,
)
