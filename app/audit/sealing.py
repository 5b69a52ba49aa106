"""Sealing changes: they get ids, salts, digests and checksums, or a number in the change feed.

A worker does it a moment after the commit; whoever reads the log or the feed does it first
(docs/adr/0061).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence

import orjson
import sqlalchemy as sa
import structlog
from sqlalchemy.exc import SQLAlchemyError

from app import clock, db
from app.audit.append import NEWS, PENDING, Change, record
from app.audit.chain import digest
from app.audit.chain.sealing import Head, Sealer
from app.audit.entries import CHANGES, HEADS
from app.audit.models import FeedChange
from app.context import tenancy
from app.db import Base
from app.errors import error_location
from app.jobs import wakeups, worker
from app.jobs.queue import IDLE_SECONDS
from app.types import JSONObject

log = structlog.get_logger()
PAUSE_SECONDS, WATCH_SECONDS = 0.02, 0.05
FEED = Base.metadata.tables[FeedChange.__tablename__]
# The last rows have the highest numbers, as there is a single writer, or newer ones expired.
NEWEST_ON_SQLITE = sa.text(
    "SELECT max(ifnull((SELECT last_id FROM audit_changes ORDER BY rowid DESC LIMIT 1), 0),"
    " ifnull((SELECT change FROM feed_changes ORDER BY rowid DESC LIMIT 1), 0),"
    " ifnull((SELECT max(first_change) FROM feed_generations), 0),"
    " last_id, expired_change) FROM audit_heads WHERE account_id = :account"
)
# Drawn under the lock of the head, so that they ascend along every chain.
DRAWN = sa.text("SELECT nextval('audit_log_ids') FROM generate_series(1, :count)")


def seal(account_id: str | None = None) -> None:
    """Seal the committed changes of an account (None: of all)."""
    for id in [account_id] if account_id else SEALER.accounts():
        SEALER.seal(id)


def connection(account_id: str | None) -> sa.Connection:
    """The connection to read what is committed of an account's log or feed (None: of all)."""
    seal(account_id)
    return db.connection()


def record_sealed(change: Change) -> None:
    """Record a change that is in the chain when the open transaction commits."""
    record(change, always=True)
    db.before_commit(_seal_all, change.account_id, last=True)


def _seal_all(account_ids: list[str]) -> None:
    for account_id in sorted(set(account_ids)):
        seal(account_id)


@worker.loop("seals")
def work(stop: threading.Event, woken: threading.Event) -> None:
    """Seal what is committed, soon after the commit, until `stop` is set."""
    hears = threading.Event()
    heard = wakeups.listening(NEWS, lambda account_ids: woken.set(), hears)
    with heard, tenancy.across_accounts():
        while not stop.is_set():
            woken.clear()
            seen, accounts = worker.last_write(), list[str]()
            try:
                accounts = SEALER.accounts()
                for account_id in accounts:
                    SEALER.seal(account_id, wait=False)
            except SQLAlchemyError as error:
                log.warning("changes are not sealed", **error_location(error))
            finally:
                db.db.session.remove()
            if accounts:
                stop.wait(PAUSE_SECONDS)  # what is committed meanwhile shares a transaction
            else:
                is_told = seen is not None or hears.is_set()
                end = time.monotonic() + (IDLE_SECONDS if is_told else worker.SWEEP_SECONDS)
                while worker.last_write() == seen and (left := end - time.monotonic()) > 0:
                    if woken.wait(left if seen is None else min(left, WATCH_SECONDS)):
                        break


def _link(account_id: str, changes: list[JSONObject], head: Head) -> None:
    names = [orjson.loads(change["columns"]) for change in changes]
    both = zip(names, changes, strict=True)
    counts = [len(own) if change["is_audited"] else 1 for own, change in both]
    ids, checksum, first = _draw(account_id, sum(counts)), head.checksum, 0
    for change, columns, count in zip(changes, names, counts, strict=True):
        own, first = ids[first : first + count], first + count
        if change["is_audited"]:
            digests = _digests(change, columns)
            *_, checksum = digest.checksums(checksum, own, digests)
            place = {"first_id": own[0], "last_id": own[-1], "entries": count}
            change |= {**place, "ids": stored_ids(own), "checksum": bytes.fromhex(checksum)}
        else:
            change["change"] = own[0]
    for table, is_audited in ((CHANGES, True), (FEED, False)):
        rows = [
            {column.name: change[column.name] for column in table.c if column.name in change}
            for change in changes
            if change["is_audited"] == is_audited
        ]
        if rows:
            db.connection().execute(sa.insert(table), rows)
    audited = [change for change in changes if change["is_audited"]]
    if audited:
        end = {"last_id": audited[-1]["last_id"], "checksum": checksum}
        moved = sa.update(HEADS).where(HEADS.c.account_id == account_id)
        db.connection().execute(moved.values(changed_at=audited[-1]["occurred_at"], **end))


def _draw(account_id: str, count: int) -> Sequence[int]:
    """Ids for so many entries."""
    if db.has_one_writer():
        newest = db.connection().scalar(NEWEST_ON_SQLITE, {"account": account_id})
        return range(newest + 1, newest + 1 + count)
    return sorted(db.connection().scalars(DRAWN, {"count": count}))


def _digests(change: JSONObject, columns: Sequence[str]) -> Sequence[str]:
    """The digests of a change's entries; adds their salts to it."""
    salts = os.urandom(digest.SALT_BYTES * len(columns))
    actor_salt = os.urandom(digest.SALT_BYTES)
    change |= {"salts": salts, "actor_salts": actor_salt}
    arrays = (
        [None] * len(columns) if change[name] is None else orjson.loads(change[name])
        for name in ("old_values", "new_values")
    )
    signed_at, metadata = change["es_timestamp"], change["extra_metadata"]
    shared = {
        **change,
        "occurred_at": clock.iso(change["occurred_at"]),
        "es_timestamp": clock.iso(signed_at) if signed_at else None,
        "extra_metadata": orjson.loads(metadata) if metadata else None,
    }
    values = list(zip(columns, *arrays, strict=True))
    return digest.EntryDigester(change["account_id"], shared).digests(values, salts, actor_salt)


def stored_ids(ids: Sequence[int]) -> str | None:
    """The ids of a change's entries as stored: nothing if they are consecutive."""
    consecutive = ids[-1] - ids[0] == len(ids) - 1
    return None if consecutive else orjson.dumps(list(ids)).decode()


SEALER = Sealer(PENDING, HEADS, _link)
