"""The database: the parent of its models, its connections, and the one transaction.

A statement outside `transaction()` is a read of its own (autocommit): it costs one round trip and
leaves no snapshot behind. Everything that writes runs inside `transaction()`, which begins with its
first statement: what comes before keeps nobody waiting.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from typing import Any

import psycopg2
import sqlalchemy as sa
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy.engine import Connection
from sqlalchemy.exc import OperationalError, SQLAlchemyError
from sqlalchemy.orm import DeclarativeBase

from app import config, disk, engines, postgres, row_security, sqlite
from app.context import tenancy
from app.pool import Pool
from app.unit_of_work import Session, Work, give_back, is_open

PURGED_AT_ONCE = 500
SCHEMA_LOCK = 0x41747269756D


class Base(DeclarativeBase):
    """The parent of every model. Names of constraints are fixed, so that errors can be mapped."""

    metadata = sa.MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )


db = SQLAlchemy(
    model_class=Base,
    disable_autonaming=True,
    session_options={"class_": Session, "scopefunc": config.context},
)


def init_app(app: Flask, settings: config.Config) -> None:
    """Bind the database that the settings name."""
    app.config["SQLALCHEMY_DATABASE_URI"] = settings.database_url
    app.config["SQLALCHEMY_ENGINE_OPTIONS"] = engines.options(settings)
    # What was read stays readable after the commit; what was read outside a transaction expires
    # as the next one begins.
    db.init_app(app)
    with app.app_context():
        db.session.session_factory.configure(expire_on_commit=False)
        engines.prepare(db.engine)
        if db.engine.dialect.name == "postgresql" and settings.row_security_enabled:
            row_security.enforce(db.engine)
        app.extensions["atrium.engine"] = db.engine


def dispose_after_fork(app: Flask) -> None:
    """Forget connections inherited from the parent process, without closing them for it."""
    with app.app_context():
        db.engine.dispose(close=False)


def connection() -> Connection:
    """The connection for Core statements: the transaction's while one is open."""
    return db.session.connection()


class driver:
    """The driver's own connection, of the open transaction or for one statement.

    Its errors come as SQLAlchemy's.
    """

    def __enter__(self) -> Any:
        """The connection; raises OperationalError where a transaction has lost its own."""
        self._taken = found = _used()
        self._lender: Pool | None = None
        if found is None:
            self._lender = _pool()
            self._taken = found = _from(self._lender.lend)
        pooled = found.connection if isinstance(found, Connection) else found
        self._driver = pooled.dbapi_connection
        if self._driver is None:
            raise OperationalError(None, None, LookupError("The connection was lost."))
        return self._driver

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        """Give back what was lent for one statement."""
        try:
            if isinstance(error, (sqlite3.Error, psycopg2.Error)):
                raise engines.as_of_sqlalchemy(error, self._taken, self._driver) from error
            if error is not None and self._lender:
                self._taken.invalidate(error)  # it may be in the midst of something
        finally:
            if self._lender:
                self._lender.take_back(self._taken)


def _pool() -> Pool:
    found: Pool = engines.running().pool  # type: ignore[assignment]
    return found


def _from(source: Callable[[], Any]) -> Any:
    try:
        return source()
    except (sqlite3.Error, psycopg2.Error) as error:
        raise engines.as_of_sqlalchemy(error) from error


def _used() -> Any:
    """The connection that this context has in use already, or the pool's hold on it."""
    session = _session()
    if session is None:
        return None
    if session.work is not None:
        return session.work.bound or session.work.begun()
    return session.connection() if session.in_transaction() else None


def _session() -> Session | None:
    """The session of this context, if it has one."""
    registry: Any = db.session.registry
    found: Session | None = registry.registry.get(registry.scopefunc())
    return found


def _open_work() -> Work:
    session = _session()
    work = session.work if session else None
    if not is_open(work):
        raise LookupError("no transaction is open")
    return work


def has_one_writer() -> bool:
    """Whether whoever writes keeps all others waiting, in all accounts: on SQLite."""
    return engines.running().dialect.name == "sqlite"


def sqlite_file() -> str | None:
    """The path of the database's file; None on PostgreSQL."""
    return engines.running().url.database if has_one_writer() else None


def check_time() -> None:
    """Between statements: refuse to go on where the transaction keeps others waiting too long."""
    session = _session()
    if session and session.work and session.work.pooled is not None:
        found = session.work.pooled.dbapi_connection
        if isinstance(found, sqlite.Driver):
            _from(found.check_time)


def in_transaction() -> bool:
    """Whether a `transaction()` is open in this context."""
    session = _session()
    return session is not None and is_open(session.work)


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


def purge(table: Any, *which: Any) -> None:
    """Delete rows of an account's table in short transactions: seen over all, deleted in one."""
    account, *key = table.primary_key
    seen = sa.select(account, *key).where(*which).limit(PURGED_AT_ONCE)
    while rows := connection().execute(seen).all():
        for account_id in {row[0] for row in rows}:
            mine = [row[1:] for row in rows if row[0] == account_id]
            # Asked again: what was changed meanwhile stays.
            chosen = (account == account_id, sa.tuple_(*key).in_(mine), *which)
            with tenancy.in_account(account_id), transaction() as session:
                session.execute(sa.delete(table).where(*chosen))


def _catch_up() -> None:
    """Have what was put off fail here, where it can be tried again, and not at the commit."""
    with driver() as found:
        if isinstance(found, postgres.Driver):
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
    session = _session()
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
    session = _session()
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
    pooled = _from(_pool().connect)
    with ExitStack() as failed:  # nothing may stay begun, also where who waits is broken off
        failed.callback(pooled.close)
        _from(partial(_begin, pooled, changes_schema))
        failed.pop_all()
    return pooled


def _begin(pooled: Any, changes_schema: bool) -> None:
    found = pooled.dbapi_connection
    if changes_schema and engines.running().dialect.name == "sqlite":
        # Tables are rebuilt to alter them, and checked then (app/collections/table.py); only out
        # here can the database's own checks be turned off.
        pooled.info["unchecked"] = True
        found.execute("PRAGMA foreign_keys = OFF")
    is_essential = _is_essential.get() if isinstance(found, sqlite.Driver) else None
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
    if engines.running().dialect.name == "postgresql":
        session.execute(sa.text("SELECT pg_advisory_xact_lock(:key)"), {"key": SCHEMA_LOCK})
        session.execute(sa.text("SET LOCAL lock_timeout = '500ms'"))
