"""The session, its unit of work behind `transaction()`, and the connection of a statement.

A statement runs on the connection of the open transaction, else on one for that statement alone.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

import psycopg2
import sqlalchemy as sa
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from flask_sqlalchemy.session import Session as BoundSession
from sqlalchemy import orm
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import ConnectionPoolEntry, PoolProxiedConnection

from app import config
from app.context import tenancy
from app.db import engine, row_security, sqlite_driver
from app.db.engine import Pool, UncountedPool
from app.db.policy import Base

Result = TypeVar("Result")
BatchCallback = Callable[[list[Any]], None]
WORK = "unit_of_work"
"""The key of the open transaction in the context's `flask.g`.

Not in the session: most writes need none, and to make and close one takes 8 % of a create.
"""


@dataclass(eq=False)
class UnitOfWork:
    """A transaction until its commit or rollback; it begins with its first statement."""

    start: Callable[[], PoolProxiedConnection]
    """Returns a connection with the transaction begun on it."""
    pooled: PoolProxiedConnection | None = None
    """The pool's connection, once the transaction has begun."""
    connection: Connection | None = None
    """SQLAlchemy's connection over the same one, once a statement needs it."""
    is_open: bool = True
    """Whether it takes more statements; if not, it waits for its commit."""
    on_commit: list[Callable[[], None]] = field(default_factory=list)
    before_commit: dict[tuple[bool, BatchCallback], list[object]] = field(default_factory=dict)
    notes: dict[str, object] = field(default_factory=dict)
    deferred: list[Callable[[], object]] = field(default_factory=list)

    def begun(self) -> PoolProxiedConnection:
        """Return the pool's connection; begins the transaction if need be."""
        if self.pooled is None:
            self.pooled = self.start()
            if self.deferred:
                self.flush_deferred()
        return self.pooled

    def defer(self, callback: Callable[[], object]) -> None:
        """Call back before the next statement, or at the end if there is none."""
        self.deferred.append(callback)
        if self.pooled is not None:
            self.flush_deferred()

    def flush_deferred(self) -> None:
        """Call what was deferred. What fails stays, so that no commit can leave it out."""
        if self.deferred:
            self.begun()
        while self.deferred:
            self.deferred[0]()
            del self.deferred[0]


class Session(BoundSession):
    """The ORM session; inside `transaction()` it uses that transaction's connection."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._g: Any = config.context().g

    @property
    def work(self) -> UnitOfWork | None:
        """The transaction that is open, or waits for its commit."""
        work: UnitOfWork | None = self._g.get(WORK)
        return work

    def get_bind(self, *args: Any, **options: Any) -> Engine | Connection:
        """Return the connection that a statement runs on."""
        work = self.work
        if work is None:
            return engine.reads_from.get() or super().get_bind(*args, **options)
        if work.connection is None:
            pooled = work.begun()  # calls what was deferred, which may set the connection
            work.connection = work.connection or Connection(
                engine.current_engine(), connection=pooled
            )
        return work.connection

    def close(self) -> None:
        """Release all connections, and roll back a transaction that is not committed."""
        try:
            super().close()
        finally:
            release()


db = SQLAlchemy(
    model_class=Base,
    disable_autonaming=True,
    session_options={"class_": Session, "scopefunc": config.context},
)


def current_session() -> Session | None:
    """Return this context's session, if it has one."""
    registry: Any = db.session.registry
    session: Session | None = registry.registry.get(registry.scopefunc())
    return session


def current_work() -> UnitOfWork | None:
    """Return this context's transaction, which is open or waits for its commit."""
    work: UnitOfWork | None = config.context().g.get(WORK)
    return work


def start_work(start: Callable[[], PoolProxiedConnection]) -> UnitOfWork:
    """Open a transaction in this context."""
    session = current_session()
    if session is not None:
        session.rollback()  # ends autocommit reads, and expires what they loaded
    work = UnitOfWork(start)
    setattr(config.context().g, WORK, work)
    return work


def hold_commits(*, hold: bool = True) -> None:
    """Hold the commit of each transaction until `held_transaction`, or the next transaction.

    A transaction that fails still rolls back by itself.
    """
    config.context().g.holds_commits = hold


def holds_commits() -> bool:
    """Whether commits are held in this context."""
    return bool(config.context().g.get("holds_commits"))


def release() -> None:
    """Release the transaction's connection; rolls back whatever is not committed."""
    work: UnitOfWork | None = config.context().g.pop(WORK, None)
    session = current_session()
    try:
        if session is not None:
            session.rollback()
    finally:
        if work is not None and work.pooled is not None:
            (work.connection or work.pooled).close()


def end_context(error: BaseException | None = None) -> None:
    """Release the transaction as the context ends; with a session, closing that one does so."""
    if current_work() is not None and current_session() is None:
        release()


def in_transaction() -> bool:
    """Whether a `transaction()` is open in this context."""
    work = current_work()
    return work is not None and work.is_open


def open_work() -> UnitOfWork:
    """Return the open transaction. Raises LookupError if none is open."""
    work = current_work()
    if work is None or not work.is_open:
        raise LookupError("no transaction is open")
    return work


def on_commit(callback: Callable[[], None]) -> None:
    """Call back after the open transaction commits; never when it rolls back."""
    callbacks = open_work().on_commit
    if callback not in callbacks:
        callbacks.append(callback)


def defer(callback: Callable[[], object]) -> None:
    """Call back before the open transaction's next statement, or before its commit.

    This lets a transaction begin as late as possible, as it blocks others. The callback's
    statements run in the tenant scope of now.
    """
    open_work().defer(partial(_call_in_scope, tenancy.source.get()(), callback))


def _call_in_scope(scope: tenancy.Scope, callback: Callable[[], object]) -> None:
    # As `tenancy.scoped_to` does, which is a module more on the way of each write.
    token = tenancy.source.set(lambda: scope)
    try:
        callback()
    finally:
        tenancy.source.reset(token)


def before_commit(callback: BatchCallback, *items: object, last: bool = False) -> None:
    """Call back once before the commit, with the items of all calls.

    Callbacks with `last` run after all others.
    """
    open_work().before_commit.setdefault((last, callback), []).extend(items)


def pending(callback: BatchCallback, *, last: bool = False) -> list[Any]:
    """Return what a callback of `before_commit` is to get, which may be changed."""
    return open_work().before_commit.setdefault((last, callback), [])


def notes() -> dict[str, Any]:
    """Return what features remember until the open transaction ends."""
    return open_work().notes


def connection() -> Connection:
    """Return the connection for Core statements: the transaction's while one is open."""
    return db.session.connection()


class driver:
    """The DBAPI connection of the open transaction, else one for a single statement.

    Errors of the driver are raised as SQLAlchemy's.
    """

    def __enter__(self) -> Any:
        # Raises OperationalError if the transaction has lost its connection.
        self._held: Connection | PoolProxiedConnection | ConnectionPoolEntry
        self._lender: Pool | None = None
        current = _current()
        if current is None:
            pool: Pool = engine.current_engine().pool  # type: ignore[assignment]
            self._held = entry = translate_errors(pool.acquire)
            self._lender, self._driver = pool, entry.dbapi_connection
        else:
            self._held = current
            pooled = current.connection if isinstance(current, Connection) else current
            self._driver = pooled.dbapi_connection
        if self._driver is None:
            raise OperationalError(None, None, LookupError("The connection was lost."))
        return self._driver

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if isinstance(error, (sqlite3.Error, psycopg2.Error)):
                raise engine.to_sqlalchemy_error(error, self._held, self._driver) from error
            if error is not None and self._lender:
                self._held.invalidate(error)  # it may be in the middle of something
        finally:
            if self._lender:
                self._lender.release(self._held)  # type: ignore[arg-type]


def _current() -> Connection | PoolProxiedConnection | None:
    """The connection that this context uses already."""
    work = current_work()
    if work is not None:
        return work.connection or (work.begun() if work.pooled is None else work.pooled)
    session = current_session()
    return session.connection() if session is not None and session.in_transaction() else None


def translate_errors(function: Callable[[], Result]) -> Result:
    """Call a function; errors of the driver are raised as SQLAlchemy's."""
    try:
        return function()
    except (sqlite3.Error, psycopg2.Error) as error:
        raise engine.to_sqlalchemy_error(error) from error


def check_time() -> None:
    """Between statements: raise OperationalError if the transaction blocks others for too long."""
    work = current_work()
    if work is not None and work.pooled is not None:
        dbapi_connection = work.pooled.dbapi_connection
        if isinstance(dbapi_connection, sqlite_driver.Driver):
            translate_errors(dbapi_connection.check_time)


@sa.event.listens_for(orm.Session, "before_flush")
def _refuse_stray_writes(
    session: orm.Session, context: object, instances: Sequence[object]
) -> None:
    work: UnitOfWork | None = getattr(session, "work", None)
    if work is None or not work.is_open:
        raise RuntimeError("a write outside transaction()")


@sa.event.listens_for(orm.Session, "before_commit")
def _refuse_stray_commits(session: orm.Session) -> None:
    work: UnitOfWork | None = getattr(session, "work", None)
    if work is not None and work.is_open and not session.in_nested_transaction():
        raise RuntimeError("a commit inside transaction(), which commits at its end")


def init_app(app: Flask, settings: config.Config) -> None:
    """Connect the application to the database of the settings."""
    app.config["SQLALCHEMY_DATABASE_URI"] = settings.database_url
    app.config["SQLALCHEMY_ENGINE_OPTIONS"] = engine.options(settings)
    db.init_app(app)
    app.teardown_appcontext(end_context)
    with app.app_context():
        # Objects stay readable after the commit; those read outside a transaction expire as the
        # next one begins.
        db.session.session_factory.configure(expire_on_commit=False)
        app.extensions["atrium.engine"] = _prepared(db.engine, settings)
        if settings.database_replica_url:
            options = {**engine.options(settings), "poolclass": UncountedPool}
            replica = sa.create_engine(settings.database_replica_url, **options)
            app.extensions["atrium.replica_engine"] = _prepared(replica, settings)


def _prepared(made: sa.Engine, settings: config.Config) -> sa.Engine:
    engine.prepare(made)
    if made.dialect.name == "postgresql":
        engine.pre_ping(made)
        if settings.row_security_enabled:
            row_security.enforce(made)
    return made


def dispose_after_fork(app: Flask) -> None:
    """Drop connections inherited from the parent process, without closing the parent's."""
    for name in ("atrium.engine", "atrium.replica_engine"):
        if name in app.extensions:
            app.extensions[name].dispose(close=False)
