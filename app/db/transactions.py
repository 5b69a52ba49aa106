"""The one transaction: everything that writes runs inside `transaction()`.

A statement outside of it is a read of its own (autocommit): it costs one round trip and keeps no
snapshot. A transaction begins with its first statement, so what comes before blocks nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

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
    translating_errors,
)
from app.db.session import Session, Work, give_back

SCHEMA_LOCK = 0x41747269756D


def _open_work() -> Work:
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
def refusing(error: Exception) -> Iterator[None]:
    """Inside, whatever begins a transaction raises the error instead."""
    token = _refusal.set(error)
    try:
        yield
    finally:
        _refusal.reset(token)


@contextmanager
def transaction(*, changes_schema: bool = False) -> Iterator[Session]:
    """One unit of work: commits at its end, rolls back on any error; inner ones join the outer."""
    session: Any = db.session()
    refusal = _refusal.get()
    if refusal is not None:
        raise refusal
    if in_transaction():
        yield session
        return
    _commit_held(session)
    session.rollback()  # ends autocommit reads, and expires what they loaded
    session.work = work = Work(partial(_begun, changes_schema))
    try:
        if changes_schema:
            _lock_schema(session)
        yield session
        session.flush()
        for (_, todo), items in sorted(work.before_commit.items(), key=_is_last):
            if items:
                todo(items)
        work.catch_up()
        if session.holds_commits and work.pooled is not None:
            _catch_up()
    except BaseException:
        with suppress(SQLAlchemyError):  # its connection is lost: that is not what went wrong here
            give_back(session)
        raise
    finally:
        work.is_open = False
    if not session.holds_commits:
        _commit_held(session)


def _catch_up() -> None:
    """Have what was put off fail here, where it can be tried again, and not at the commit."""
    with driver() as found:
        if isinstance(found, postgres_driver.Driver):
            found.catch_up()


def _commit_held(session: Session) -> None:
    work = session.work
    if work is None:
        return
    try:
        if session.in_transaction():
            session.commit()
        if work.pooled is not None:
            with driver() as found:
                found.commit()  # nothing, where the session had a part in it
    finally:
        give_back(session)
    for callback in work.on_commit:
        callback()


def hold_commits(*, hold: bool = True) -> None:
    """Have each transaction wait with its commit until `held_transaction`, or the next one.

    It is done but for that, and still rolls back by itself where it fails.
    """
    session: Any = db.session()
    session.holds_commits = hold


@contextmanager
def held_transaction() -> Iterator[None]:
    """Something more in the transaction that waits for its commit, else in one of its own."""
    session = current_session()
    if session is None or not _waits(session.work):
        with transaction():
            yield
        return
    try:
        yield
        _commit_held(session)
    finally:
        drop_held()  # nothing, once it is committed


def drop_held() -> None:
    """Roll back what waits for its commit."""
    session = current_session()
    if session is not None and _waits(session.work):
        give_back(session)


def _waits(work: Work | None) -> bool:
    """Whether a transaction waits for its commit."""
    return work is not None and not work.is_open


@contextmanager
def savepoint() -> Iterator[None]:
    """A part of the open transaction that may fail without the rest of it."""
    opened = _open_work()
    opened.catch_up()  # what was put off is no part of this
    waiting = opened.before_commit
    kept = {work: len(items) for work, items in waiting.items()}
    try:
        with db.session.begin_nested():
            connection()  # or the savepoint would wait for the session's next statement
            yield
    except BaseException:
        for work, items in waiting.items():
            del items[kept.get(work, 0) :]
        raise


def on_commit(callback: Callable[[], None]) -> None:
    """Call back after the open transaction commits; never when it rolls back."""
    callbacks = _open_work().on_commit
    if callback not in callbacks:
        callbacks.append(callback)


def put_off(todo: Callable[[], None]) -> None:
    """Have the open transaction do something before anything else that it does from now on.

    It begins no sooner than it must, as others wait while it lasts. Whose rows statements are about
    now, those of `todo` are.
    """
    _open_work().put_off(partial(_do_about, tenancy.current(), todo))


def _do_about(scope: tenancy.Scope, todo: Callable[[], None]) -> None:
    with tenancy.scoped_to(scope):
        todo()


def before_commit(work: Callable[[list[Any]], None], *items: Any, last: bool = False) -> None:
    """Have `work` called once with all items given, at the end of the transaction.

    Of all such work, what is `last` comes last.
    """
    _open_work().before_commit.setdefault((last, work), []).extend(items)


def _is_last(entry: Any) -> bool:
    return bool(entry[0][0])


def notes() -> dict[str, Any]:
    """What features remember for as long as the open transaction lasts."""
    return _open_work().notes


def _begun(changes_schema: bool) -> Any:
    """The pool's hold on a connection on which a transaction has begun."""
    pooled = translating_errors(connection_pool().connect)
    with ExitStack() as failed:  # nothing may stay begun, also where who waits is broken off
        failed.callback(pooled.close)
        translating_errors(partial(_begin, pooled, changes_schema))
        failed.pop_all()
    return pooled


def _begin(pooled: Any, changes_schema: bool) -> None:
    found = pooled.dbapi_connection
    if changes_schema and engine.running().dialect.name == "sqlite":
        # Tables are rebuilt to alter them, and checked then (app/collections/table.py); only out
        # here can the database's own checks be turned off.
        pooled.info["unchecked"] = True
        found.execute("PRAGMA foreign_keys = OFF")
    is_essential = _is_essential.get() if isinstance(found, sqlite_driver.Driver) else None
    if is_essential:
        disk.prepare(str(sqlite_file()), found, is_essential)
    found.begin()
    # Changes of the schema may keep others waiting for longer.
    if is_essential and not changes_schema and not _unlimited.get():
        found.limit(config.current().sqlite_transaction_seconds)


_unlimited: ContextVar[bool] = ContextVar("unlimited", default=False)
_is_essential: ContextVar[Callable[[], bool] | None] = ContextVar("is_essential", default=None)


def limit(is_essential: Callable[[], bool] | None) -> None:
    """Limit what this context writes to SQLite, as for requests; None: commands and jobs.

    On a full disk, what `is_essential` may write still.
    """
    _is_essential.set(is_essential)


@contextmanager
def unlimited() -> Iterator[None]:
    """Inside, a transaction may last for as long as it takes: for what only superadmins do."""
    token = _unlimited.set(True)
    try:
        yield
    finally:
        _unlimited.reset(token)


def _lock_schema(session: Session) -> None:
    # One change of the schema at a time; and as a waiting ALTER TABLE blocks every reader behind
    # it, it gives way soon, to be tried again.
    if engine.running().dialect.name == "postgresql":
        session.execute(sa.text("SELECT pg_advisory_xact_lock(:key)"), {"key": SCHEMA_LOCK})
        session.execute(sa.text("SET LOCAL lock_timeout = '500ms'"))
