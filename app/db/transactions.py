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
from app.context import deadline, tenancy
from app.db import disk, engine, postgres_driver, sqlite_driver
from app.db.session import (
    BatchCallback,
    Session,
    UnitOfWork,
    connection,
    current_session,
    current_work,
    db,
    driver,
    hold_commits,
    holds_commits,
    open_work,
    release,
    start_work,
    translate_errors,
)

SCHEMA_LOCK = 0x41747269756D
BATCH_ROWS = 500


_refusal: ContextVar[Exception | None] = ContextVar("refusal", default=None)


@contextmanager
def refuse_transactions(error: Exception | None) -> Iterator[None]:
    """Raise this error from every `transaction()` inside the block; None allows them again."""
    token = _refusal.set(error)
    try:
        yield
    finally:
        _refusal.reset(token)


@contextmanager
def transaction(*, changes_schema: bool = False) -> Iterator[Session]:
    """Commit at the end of the block, roll back on any error; inner blocks join the outer one."""
    # A proxy, as most writes need no session.
    session: Session = db.session  # type: ignore[assignment]
    refusal = _refusal.get()
    if refusal is not None:
        raise refusal
    outer = current_work()
    if outer is not None and outer.is_open:
        yield session
        return
    if outer is not None:
        _commit_held(outer)
    work = start_work(partial(_begun, changes_schema))
    # Schema changes may take longer: they rebuild tables.
    limit = deadline.limit.set(None if changes_schema else deadline.limit.get())
    try:
        if changes_schema and engine.current_engine().dialect.name == "postgresql":
            # Citus: before anything else, as all of it must use one connection to each worker.
            session.execute(sa.text("SET LOCAL citus.multi_shard_modify_mode = 'sequential'"))
            # One schema change at a time. A waiting ALTER TABLE blocks every reader behind it, so
            # it times out soon and is retried.
            lock_schema()
            session.execute(sa.text("SET LOCAL lock_timeout = '500ms'"))
        yield session
        if (joined := current_session()) is not None:
            joined.flush()
        _run_before_commit(work)
        if work.deferred:
            work.flush_deferred()
        is_held = holds_commits()
        if is_held and work.pooled is not None:
            # Send deferred statements now: a failure here can be retried, one at the commit cannot.
            with driver() as dbapi_connection:
                if isinstance(dbapi_connection, postgres_driver.Driver):
                    dbapi_connection.flush_deferred()
    except BaseException:
        with suppress(SQLAlchemyError):  # a lost connection must not hide the first error
            release()
        raise
    finally:
        work.is_open = False
        deadline.limit.reset(limit)
    if not is_held:
        _commit_held(work)


def lock_schema() -> None:
    """Wait for the schema change that is under way; no other one starts before the commit.

    Of a rename that schemas and rules follow, so that both lock rows in one order.
    """
    if engine.current_engine().dialect.name == "postgresql":
        take = sa.text("SELECT pg_advisory_xact_lock(:key)")
        db.session.execute(take, {"key": SCHEMA_LOCK})


@contextmanager
def transaction_apart() -> Iterator[None]:
    """Commit at the end of the block, whatever transaction is open around it.

    On SQLite, which has one writer, the block is part of that one.
    """
    if current_work() is None:
        is_holding = holds_commits()
        hold_commits(hold=False)  # or nobody could go on from it beside this transaction
        try:
            with transaction():
                yield
        finally:
            hold_commits(hold=is_holding)
    elif engine.has_one_writer():
        yield
    else:
        with config.running().app_context(), transaction():
            yield


def flush_before_commit() -> None:
    """Write what waits for the end of the open transaction, so that memory stays bounded.

    From then on the transaction holds what is locked last, as the heads of audit chains.
    """
    work = open_work()
    work.flush_deferred()
    _run_before_commit(work)
    work.before_commit.clear()


def _run_before_commit(work: UnitOfWork) -> None:
    for (_, callback), items in sorted(work.before_commit.items(), key=_is_last):
        if items:
            callback(items)


def _commit_held(work: UnitOfWork) -> None:
    try:
        session = current_session()
        if session is not None and session.in_transaction():
            session.commit()
        if work.pooled is not None:
            with driver() as dbapi_connection:
                dbapi_connection.commit()  # does nothing if the session has committed
    finally:
        release()
    for callback in work.on_commit:
        callback()


@contextmanager
def held_transaction() -> Iterator[None]:
    """Continue the transaction whose commit is held, and commit it; else open a new one."""
    work = current_work()
    if work is None or work.is_open:
        with transaction():
            yield
        return
    try:
        yield
        if current_work() is work:  # else an inner transaction has committed it
            _commit_held(work)
    finally:
        rollback_held()  # does nothing after the commit


def rollback_held() -> None:
    """Roll back the transaction whose commit is held."""
    work = current_work()
    if work is not None and not work.is_open:
        release()


@contextmanager
def savepoint() -> Iterator[None]:
    """Roll back to here if the block fails; the rest of the transaction goes on."""
    work = open_work()
    work.flush_deferred()  # deferred work is no part of the savepoint
    pending = work.before_commit
    counts = {callback: len(items) for callback, items in pending.items()}
    try:
        with db.session.begin_nested():
            connection()  # or the savepoint would wait for the session's next statement
            yield
            work.flush_deferred()  # what was deferred since is
    except BaseException:
        work.deferred.clear()
        for callback, items in pending.items():
            del items[counts.get(callback, 0) :]
        raise


def _is_last(entry: tuple[tuple[bool, BatchCallback], list[object]]) -> bool:
    return entry[0][0]


def _begun(changes_schema: bool) -> PoolProxiedConnection:
    primary: sa.Engine = config.context().app.extensions["atrium.engine"]
    return translate_errors(partial(_begin, primary.pool, changes_schema))


def _begin(pool: sa.Pool, changes_schema: bool) -> PoolProxiedConnection:
    pooled = pool.connect()
    with ExitStack() as cleanup:  # leave no transaction begun, even if the wait is interrupted
        cleanup.callback(pooled.close)
        dbapi_connection: Any = pooled.dbapi_connection
        if isinstance(dbapi_connection, sqlite_driver.Driver):
            is_essential = write_limit.get()
            if is_essential:
                disk.check_free_space(dbapi_connection.database, dbapi_connection, is_essential)
            # ALTER rebuilds tables and checks them afterwards (app/collections/table.py).
            dbapi_connection.begin(deadline.limit.get(), checks_foreign_keys=not changes_schema)
        else:
            dbapi_connection.begin()
        cleanup.pop_all()
    return pooled


write_limit: ContextVar[Callable[[], bool] | None] = ContextVar("write_limit", default=None)
"""On a nearly full disk only writes for which it returns true go on; None lets all go on."""


def purge(table: sa.Table, *where: sa.ColumnElement[bool]) -> None:
    """Delete many rows of a tenant table in short transactions.

    They are found over all accounts, and deleted account by account.
    """
    account, *key = table.primary_key
    batch = sa.select(account, *key).where(*where).limit(BATCH_ROWS)
    while rows := connection().execute(batch).all():
        for account_id in {row[0] for row in rows}:
            keys = [row[1:] for row in rows if row[0] == account_id]
            # The condition stands here, too: rows changed meanwhile stay.
            own = (account == account_id, sa.tuple_(*key).in_(keys), *where)
            with tenancy.in_account(account_id), transaction() as session:
                session.execute(sa.delete(table).where(*own))


@contextmanager
def snapshot() -> Iterator[sa.Connection]:
    """A connection of its own that sees the database as it is at its first statement.

    Blocks no writer. The tenant scope is that of the block's beginning.
    """
    with engine.current_engine().connect() as connection:
        driver = connection.connection.driver_connection
        if isinstance(driver, postgres_driver.Driver):
            # Before the tenant scope, which Citus sets by a statement of its own.
            driver.begin_snapshot()
        else:
            connection.exec_driver_sql("BEGIN")
        try:
            if isinstance(driver, postgres_driver.Driver):
                connection.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = 0")
            yield connection
        finally:
            connection.exec_driver_sql("ROLLBACK")
