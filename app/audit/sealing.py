"""Sealing: stored changes get their place in the chain and in the feed after their commit.

Whoever seals holds the head of the account's chain, draws numbers, links the changes to the chain
and removes them from where they waited, all in one short transaction. Numbers become visible in
their order, as nobody else draws any meanwhile. Whoever reads the log or the feed seals first, so
that everybody sees what they did; a thread seals what nobody reads.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import orjson
import sqlalchemy as sa
import structlog
from flask import Flask
from sqlalchemy.dialects import sqlite
from sqlalchemy.exc import IntegrityError, InternalError, SQLAlchemyError

from app import clock, db, events
from app.audit.append import NEWS
from app.audit.chain import digest
from app.audit.models import AuditChange, AuditHead, FeedChange, FeedGeneration, PendingChange
from app.context import deadline, tenancy
from app.db import Base, sqlite_driver
from app.db.prepared import PreparedStatement
from app.db.transactions import snapshot
from app.errors import Unavailable, error_location
from app.jobs import wakeups, worker
from app.types import JSONObject

log = structlog.get_logger()
LOOK_SECONDS = 15
"""Between looks for what was not announced: a worker sees each write to SQLite, readers seal."""
GATHER_SECONDS = 0.04
"""After news: what is written meanwhile is sealed with it, in one transaction."""
SHARE, LONGEST_PAUSE = 0.1, 2
"""Of the time on SQLite, whose writers wait while somebody seals; and seconds at most."""
STUCK_SECONDS = 5
"""For a statement, or a lock on an account's head: then other accounts have their turn."""
BATCH_SIZE, ROOM = 200, 4 * 2**20  # changes, and characters of their values, in memory at once
PENDING, CHANGES, FEED, HEADS = (
    Base.metadata.tables[model.__tablename__]
    for model in (PendingChange, AuditChange, FeedChange, AuditHead)
)
# Numbers follow from what is stored, as there is a single writer. The last rows have the highest
# ones, or newer ones expired.
_NEWEST = (
    sa.select(CHANGES.c.last_id).order_by(sa.text("rowid DESC")).limit(1).scalar_subquery(),
    sa.select(FEED.c.change).order_by(sa.text("rowid DESC")).limit(1).scalar_subquery(),
    sa.select(sa.func.max(FeedGeneration.first_change)).scalar_subquery(),
)
_NEWEST_PENDING = PreparedStatement(
    sa.select(sa.func.max(PENDING.c.id)).where(PENDING.c.account_id == sa.bindparam("_account_id"))
)


class Head(NamedTuple):
    """The end of an account's chain, and on SQLite the last number of all accounts."""

    number: int
    checksum: str


def settle(account_id: str | None) -> None:
    """Seal the changes of an account (None: of all) that are committed: readers of now see them.

    Raises Unavailable if that takes longer than a statement may, or a change cannot be sealed.
    """
    limit = deadline.limit.get()
    end = time.monotonic() + limit.seconds if limit else math.inf
    for one in due() if account_id is None else (account_id,):
        _settle(one, end)


def _settle(account_id: str, end: float = math.inf) -> None:
    with tenancy.in_account(account_id):
        ((until,),) = _NEWEST_PENDING.all({"_account_id": account_id})
        last = 0
        # What was committed by now comes in the order of ids: PostgreSQL need not pass again by the
        # rows that were sealed, which it keeps while somebody's snapshot is older.
        while until is not None and (last := _seal(account_id, until, last)):
            if time.monotonic() > end:
                raise Unavailable


def settle_for_list(account_id: str | None) -> None:
    """Seal the changes that a list shows; that of all accounts (None) lacks what cannot be sealed.

    Raises Unavailable, and SQLAlchemyError where no account can be sealed.
    """
    if account_id is not None:
        settle(account_id)
        return
    for one in due():
        try:
            with brief():
                settle(one)
        except (SQLAlchemyError, Unavailable) as error:
            if db.has_one_writer() and not isinstance(error, Unavailable):
                raise
            log.warning("changes are not sealed", account=one, **error_location(error))


def brief(seconds: float = STUCK_SECONDS) -> AbstractContextManager[None]:
    """Let sealing give up soon, for those who have other accounts to look after."""
    return nullcontext() if db.has_one_writer() else deadline.within(deadline.Limit(seconds))


def settle_before_commit(account_id: str) -> None:
    """Seal an account's changes in the open transaction, also those that it has recorded so far."""
    db.before_commit(_settle_within, account_id, last=True)


def _settle_within(account_ids: list[str]) -> None:
    for account_id in sorted(set(account_ids)):
        with tenancy.in_account(account_id):
            while _seal_in_transaction(account_id, sa.true()):
                pass


def due() -> Sequence[str]:
    """The accounts with changes that are not sealed."""
    query = sa.select(PENDING.c.account_id).distinct().order_by(PENDING.c.account_id)
    return db.connection().scalars(query).all()


def _seal(account_id: str, until: int, after: int) -> int:
    """Seal the oldest changes up to one. Returns the last one sealed; 0 if there are no more."""
    which = PENDING.c.id.between(after + 1, until)
    batch = None
    if db.has_one_writer():  # everybody waits for it, so it computes what it can before
        batch = _batch(account_id, _head_on_sqlite(account_id), which)
    with transaction():
        return _seal_in_transaction(account_id, which, batch)


@contextmanager
def transaction() -> Iterator[None]:
    """A transaction of its own, to give changes their place. Raises Unavailable."""
    limit = db.write_limit.set(None)  # whoever may write nothing may read
    try:
        with db.transaction_apart():
            yield
    except (IntegrityError, InternalError) as error:  # a server that takes no writes, for example
        raise Unavailable from error
    finally:
        db.write_limit.reset(limit)


@contextmanager
def complete_snapshot(account_id: str) -> Iterator[tuple[sa.Connection, sa.Connection, Any]]:
    """A snapshot, another that has the log of what it shows, and where that log ends.

    What the first one shows unsealed is sealed before anything else, however much is written.
    """
    settle(account_id)
    with ExitStack() as stack:
        with db.transaction_apart():
            lock_head(account_id)  # nobody else seals until the commit
            shown = stack.enter_context(snapshot())
            query = sa.select(PENDING.c.id).where(PENDING.c.account_id == account_id)
            ids = shown.scalars(query.order_by(PENDING.c.id)).all()
            for start in range(0, len(ids), BATCH_SIZE):
                shown_ids = PENDING.c.id.in_(ids[start : start + BATCH_SIZE])
                while _seal_in_transaction(account_id, shown_ids):
                    pass
            end = sa.select(HEADS.c.last_id, HEADS.c.checksum)
            head = db.connection().execute(end.where(HEADS.c.account_id == account_id)).one()
        yield shown, stack.enter_context(snapshot()), head


@dataclass(frozen=True)
class _Batch:
    """Changes with their places behind the end of a chain."""

    head: Head
    ids: Sequence[int]
    audited: Sequence[JSONObject]
    unaudited: Sequence[JSONObject]
    is_last: bool


def _seal_in_transaction(
    account_id: str, which: sa.ColumnElement[bool], batch: _Batch | None = None
) -> int:
    head = lock_head(account_id)
    # Where the head is still the same, nobody has sealed meanwhile, and so removed nothing.
    if batch is None or batch.head != head:
        batch = _batch(account_id, head, which)
    if not batch.ids:
        return 0
    _link(account_id, batch)
    own = (PENDING.c.account_id == account_id, PENDING.c.id.in_(batch.ids))
    db.connection().execute(sa.delete(PENDING).where(*own))
    return 0 if batch.is_last else batch.ids[-1]


def lock_head(account_id: str) -> Head:
    """The end of an account's chain, which is locked until the transaction ends."""
    if not db.has_one_writer():
        lock = sa.select(sa.func.lock_audit_head(account_id, clock.now()))
        return Head(0, db.connection().execute(lock).scalar_one())
    new = {"last_id": 0, "checksum": digest.FIRST_PREVIOUS, "changed_at": clock.now()}
    head = sqlite.insert(HEADS).values(account_id=account_id, checkpoint_id=0, **new)
    db.connection().execute(head.on_conflict_do_nothing())
    return _head_on_sqlite(account_id)


def _head_on_sqlite(account_id: str) -> Head:
    query = sa.select(HEADS.c.checksum, HEADS.c.last_id, HEADS.c.expired_change, *_NEWEST)
    row = db.connection().execute(query.where(HEADS.c.account_id == account_id)).one_or_none()
    return Head(max(number or 0 for number in row[1:]), row.checksum) if row else Head(0, "")


def _batch(account_id: str, head: Head, which: sa.ColumnElement[bool]) -> _Batch:
    """Raises Unavailable if a change cannot be sealed."""
    own = PENDING.c.account_id == account_id
    oldest = sa.select(PENDING.c.id, PENDING.c.size).where(own, which)
    found = db.connection().execute(oldest.order_by(PENDING.c.id).limit(BATCH_SIZE)).all()
    ends = accumulate(row.size for row in found)
    ids = [row.id for row, end in zip(found, ends, strict=True) if end <= ROOM or row is found[0]]
    query = sa.select(PENDING).where(own, PENDING.c.id.in_(ids)).order_by(PENDING.c.id)
    rows = db.connection().execute(query).all() if ids else []
    if not rows:
        return _Batch(head, (), (), (), is_last=True)
    changes = [dict(zip(query.selected_columns.keys(), row, strict=True)) for row in rows]
    is_last = len(ids) == len(found) < BATCH_SIZE
    try:
        return _Batch(head, ids, *_placed(head, changes), is_last)
    except (ValueError, TypeError, LookupError) as error:  # somebody else wrote it
        raise Unavailable from error


def _placed(head: Head, changes: Sequence[JSONObject]) -> tuple[list[JSONObject], list[JSONObject]]:
    """The rows of audited changes, linked to the chain, and those of others."""
    digests = [_digests(change) for change in changes]
    drawn, checksum = iter(numbers(head.number, sum(map(len, digests)))), head.checksum
    audited, unaudited = list[JSONObject](), list[JSONObject]()
    for change, own_digests in zip(changes, digests, strict=True):
        own = [next(drawn) for _ in own_digests]
        if change["salts"] is None:
            row = {name: change[name] for name in FEED.c.keys() & change.keys()}
            unaudited.append(row | {"change": own[0]})
            continue
        *_, checksum = digest.checksums(checksum, own, own_digests)
        is_gapless = own[-1] - own[0] == len(own) - 1
        change |= {"first_id": own[0], "last_id": own[-1], "entries": len(own)}
        change |= {"ids": None if is_gapless else orjson.dumps(own).decode()}
        change["checksum"] = bytes.fromhex(checksum)
        del change["id"]
        audited.append(change)
    return audited, unaudited


def _link(account_id: str, batch: _Batch) -> None:
    if batch.unaudited:
        db.connection().execute(sa.insert(FEED), batch.unaudited)
    if batch.audited:
        db.connection().execute(sa.insert(CHANGES), batch.audited)
        last = batch.audited[-1]
        end = {"last_id": last["last_id"], "checksum": last["checksum"].hex()}
        head = sa.update(HEADS).where(HEADS.c.account_id == account_id)
        db.connection().execute(head.values(**end, changed_at=last["occurred_at"]))


def numbers(newest: int, count: int) -> Sequence[int]:
    """The next numbers, under the lock; on PostgreSQL other accounts draw between them."""
    if db.has_one_writer():
        return range(newest + 1, newest + 1 + count)
    drawn = sa.func.array_agg(sa.func.nextval("audit_log_ids"))
    query = sa.select(drawn).select_from(sa.func.generate_series(1, count))
    return sorted(db.connection().execute(query).scalar_one())


def _digests(change: JSONObject) -> Sequence[str]:
    """The digest of each entry; of a change that is not audited, one that nobody needs."""
    if change["salts"] is None:
        return [""]
    if change["digest_version"] not in (None, digest.VERSION):
        raise ValueError("digests of an unknown version")
    shared = {**change, "occurred_at": clock.iso(change["occurred_at"])}
    shared["es_timestamp"] = change["es_timestamp"] and clock.iso(change["es_timestamp"])
    shared["extra_metadata"] = orjson.loads(change["extra_metadata"] or "null")
    columns = orjson.loads(change["columns"])
    olds, news = (
        [None] * len(columns) if change[name] is None else orjson.loads(change[name])
        for name in ("old_values", "new_values")
    )
    digester = digest.EntryDigester(change["account_id"], shared)
    values = list(zip(columns, olds, news, strict=True))
    return digester.digests(values, change["salts"], change["actor_salts"])


@worker.loop("sealing")
def work(stop: threading.Event, woken: threading.Event) -> None:
    """Seal what is announced, and now and then all there is, until `stop` is set."""
    with wakeups.listening(NEWS, lambda accounts: woken.set(), threading.Event()):
        while not stop.is_set():
            with sqlite_driver.alone(db.sqlite_file(), "sealing") as is_alone:
                if is_alone:
                    woken.clear()
                    began = time.monotonic()
                    _look()
                    if db.has_one_writer():
                        stop.wait(min((time.monotonic() - began) / SHARE, LONGEST_PAUSE))
            # News stays while another process seals: its own look may have come before.
            woken.wait(LOOK_SECONDS)
            stop.wait(GATHER_SECONDS)


def _look() -> None:
    try:
        seal_due()
        events.publish(events.Sealing())
    except Exception as error:  # noqa: BLE001 - the database may be away for a while
        log.warning("changes are not sealed", **error_location(error))
    db.db.session.remove()


def seal_due() -> None:
    """Seal what is committed, account by account; one that fails does not stop the others."""
    with tenancy.across_accounts():
        accounts = due()
    for account_id in accounts:
        try:
            with brief():
                _settle(account_id)
        except Exception as error:  # noqa: BLE001 - its readers see it
            log.warning("changes are not sealed", account=account_id, **error_location(error))
            db.db.session.remove()


def start(app: Flask) -> None:
    """Seal in a thread of this process, where SQLite has no other process that hears at once."""

    def run() -> None:
        with app.app_context():
            work(threading.Event(), threading.Event())

    with app.app_context():
        if db.has_one_writer():
            threading.Thread(target=run, name="sealing", daemon=True).start()
