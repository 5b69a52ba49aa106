"""The connection of a statement: the open transaction's, else one for that statement alone."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

import psycopg2
from sqlalchemy.engine import Connection
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import ConnectionPoolEntry, PoolProxiedConnection

from app.db import engine, sqlite_driver
from app.db.base import db
from app.db.pool import Pool
from app.db.session import Session

Result = TypeVar("Result")


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
            self._lender = connection_pool()
            self._held = translate_errors(self._lender.acquire)
            self._driver = self._held.dbapi_connection
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


def connection_pool() -> Pool:
    """Return the application's pool."""
    pool: Pool = engine.current_engine().pool  # type: ignore[assignment]
    return pool


def translate_errors(function: Callable[[], Result]) -> Result:
    """Call a function; errors of the driver are raised as SQLAlchemy's."""
    try:
        return function()
    except (sqlite3.Error, psycopg2.Error) as error:
        raise engine.to_sqlalchemy_error(error) from error


def _current() -> Connection | PoolProxiedConnection | None:
    """The connection that this context uses already."""
    session = current_session()
    if session is None:
        return None
    work = session.work
    if work is not None:
        return work.connection or (work.begun() if work.pooled is None else work.pooled)
    return session.connection() if session.in_transaction() else None


def current_session() -> Session | None:
    """Return this context's session, if it has one."""
    registry: Any = db.session.registry
    session: Session | None = registry.registry.get(registry.scopefunc())
    return session


def has_one_writer() -> bool:
    """Whether the database takes one writer at a time, over all accounts: SQLite."""
    return engine.current_engine().dialect.name == "sqlite"


def sqlite_file() -> str | None:
    """Return the path of the database file; None on PostgreSQL."""
    return engine.current_engine().url.database if has_one_writer() else None


def check_time() -> None:
    """Between statements: raise OperationalError if the transaction blocks others for too long."""
    session = current_session()
    if session and session.work and session.work.pooled is not None:
        dbapi_connection = session.work.pooled.dbapi_connection
        if isinstance(dbapi_connection, sqlite_driver.Driver):
            translate_errors(dbapi_connection.check_time)
