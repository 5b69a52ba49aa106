"""The one transaction: everything that writes runs inside `transaction()`.

A statement outside of it is a read of its own (autocommit): one round trip, no snapshot. A
transaction begins with its first statement, so the code before that blocks nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import PoolProxiedConnection

from app import config
from app.context import tenancy
from app.db import disk, engine, postgres_driver, sqlite_driver
from app.db.base import db
from app.db.connections import (
    connection,
    connection_pool,
    current_session,
    driver,
    sqlite_file,
    translate_errors,
)
from app.db.session import BatchCallback, Session, UnitOfWork, release

SCHEMA_LOCK = 0x41747269756D


def _open_work() -> UnitOfWork:
    session = current_session()
    work = session.work if session else None
    if work is None or not work.is_open:
        raise LookupError("no transaction is open")
    return work


def in_transaction() -> bool:
    """Whether a `transaction()` is open in this context."""
    session = current_session()
    return session is not None and session.work is not None and session.work.is_open


_refusal: ContextVar[Exception | None] = ContextVar("refusal", default=None)


@contextmanager
def refuse_transactions(error: Exception) -> Iterator[None]:
    """Raise this error from every `transaction()` inside the block."""
    token = _refusal.set(error)
    try:
        yield
    finally:
        _refusal.reset(token)


@contextmanager
def transaction(*, changes_schema: bool = False) -> Iterator[Session]:
    """Commit at the end of the block, roll back on any error; inner blocks join the outer one."""
    session: Session = db.session()  # type: ignore[assignment]
    refusal = _refusal.get()
    if refusal is not None:
        raise refusal
    if in_transaction():
        yield session
        return
    _commit_held(session)
    session.rollback()  # ends autocommit reads, and expires what they loaded
    session.work = work = UnitOfWork(partial(_begun, changes_schema))
    try:
        if changes_schema:
            _lock_schema(session)
        yield session
        session.flush()
        for (_, callback), items in sorted(work.before_commit.items(), key=_is_last):
            if items:
                callback(items)
        work.flush_deferred()
        if session.holds_commits and work.pooled is not None:
            _flush_driver()
    except BaseException:
        with suppress(SQLAlchemyError):  # a lost connection must not hide the first error
            release(session)
        raise
    finally:
        work.is_open = False
    if not session.holds_commits:
        _commit_held(session)


def _flush_driver() -> None:
    """Send deferred statements now: a failure here can be retried, one at the commit cannot."""
    with driver() as dbapi_connection:
        if isinstance(dbapi_connection, postgres_driver.Driver):
            dbapi_connection.flush_deferred()


def _commit_held(session: Session) -> None:
    work = session.work
    if work is None:
        return
    try:
        if session.in_transaction():
            session.commit()
        if work.pooled is not None:
            with driver() as dbapi_connection:
                dbapi_connection.commit()  # does nothing if the session has committed
    finally:
        release(session)
    for callback in work.on_commit:
        callback()


def hold_commits(*, hold: bool = True) -> None:
    """Hold the commit of each transaction until `held_transaction`, or the next transaction.

    A transaction that fails still rolls back by itself.
    """
    session: Session = db.session()  # type: ignore[assignment]
    session.holds_commits = hold


@contextmanager
def held_transaction() -> Iterator[None]:
    """Continue the transaction whose commit is held, and commit it; else open a new one."""
    session = current_session()
    if session is None or not _is_held(session.work):
        with transaction():
            yield
        return
    try:
        yield
        _commit_held(session)
    finally:
        rollback_held()  # does nothing after the commit


def rollback_held() -> None:
    """Roll back the transaction whose commit is held."""
    session = current_session()
    if session is not None and _is_held(session.work):
        release(session)


def _is_held(work: UnitOfWork | None) -> bool:
    return work is not None and not work.is_open


@contextmanager
def savepoint() -> Iterator[None]:
    """Roll back to here if the block fails; the rest of the transaction goes on."""
    work = _open_work()
    work.flush_deferred()  # deferred work is no part of the savepoint
    pending = work.before_commit
    counts = {callback: len(items) for callback, items in pending.items()}
    try:
        with db.session.begin_nested():
            connection()  # or the savepoint would wait for the session's next statement
            yield
    except BaseException:
        for callback, items in pending.items():
            del items[counts.get(callback, 0) :]
        raise


def on_commit(callback: Callable[[], None]) -> None:
    """Call back after the open transaction commits; never when it rolls back."""
    callbacks = _open_work().on_commit
    if callback not in callbacks:
        callbacks.append(callback)


def defer(callback: Callable[[], None]) -> None:
    """Call back before the open transaction's next statement, or before its commit.

    This lets a transaction begin as late as possible, as it blocks others. The callback's
    statements run in the tenant scope of now.
    """
    _open_work().defer(partial(_call_in_scope, tenancy.current(), callback))


def _call_in_scope(scope: tenancy.Scope, callback: Callable[[], None]) -> None:
    with tenancy.scoped_to(scope):
        callback()


def before_commit(callback: BatchCallback, *items: object, last: bool = False) -> None:
    """Call back once before the commit, with the items of all calls.

    Callbacks with `last` run after all others.
    """
    _open_work().before_commit.setdefault((last, callback), []).extend(items)


def _is_last(entry: tuple[tuple[bool, BatchCallback], list[object]]) -> bool:
    return entry[0][0]


def notes() -> dict[str, Any]:
    """Return what features remember until the open transaction ends."""
    return _open_work().notes


def _begun(changes_schema: bool) -> PoolProxiedConnection:
    """A connection of the pool with a transaction begun on it."""
    pooled = translate_errors(connection_pool().connect)
    with ExitStack() as cleanup:  # leave no transaction begun, even if the wait is interrupted
        cleanup.callback(pooled.close)
        translate_errors(partial(_begin, pooled, changes_schema))
        cleanup.pop_all()
    return pooled


def _begin(pooled: PoolProxiedConnection, changes_schema: bool) -> None:
    dbapi_connection: Any = pooled.dbapi_connection
    if changes_schema and engine.current_engine().dialect.name == "sqlite":
        # ALTER rebuilds tables and checks them afterwards (app/collections/table.py). SQLite can
        # switch its own checks off only outside a transaction.
        pooled.info["unchecked"] = True
        dbapi_connection.execute("PRAGMA foreign_keys = OFF")
    is_sqlite = isinstance(dbapi_connection, sqlite_driver.Driver)
    is_essential = _is_essential.get() if is_sqlite else None
    if is_essential:
        disk.check_free_space(str(sqlite_file()), dbapi_connection, is_essential)
    dbapi_connection.begin()
    # Schema changes may block others for longer.
    if is_essential and not changes_schema and not _without_time_limit.get():
        dbapi_connection.limit(config.current().sqlite_transaction_seconds)


_without_time_limit: ContextVar[bool] = ContextVar("without_time_limit", default=False)
_is_essential: ContextVar[Callable[[], bool] | None] = ContextVar("is_essential", default=None)


def limit_writes(is_essential: Callable[[], bool] | None) -> None:
    """Limit this context's writes to SQLite, as for requests; None (commands, jobs) lifts it.

    On a nearly full disk only writes for which `is_essential` returns true go on.
    """
    _is_essential.set(is_essential)


@contextmanager
def without_time_limit() -> Iterator[None]:
    """Let transactions inside the block last as long as they need: for superadmins only."""
    token = _without_time_limit.set(True)
    try:
        yield
    finally:
        _without_time_limit.reset(token)


def _lock_schema(session: Session) -> None:
    # One schema change at a time. A waiting ALTER TABLE blocks every reader behind it, so it times
    # out soon and is retried.
    if engine.current_engine().dialect.name == "postgresql":
        session.execute(sa.text("SELECT pg_advisory_xact_lock(:key)"), {"key": SCHEMA_LOCK})
        session.execute(sa.text("SET LOCAL lock_timeout = '500ms'"))
