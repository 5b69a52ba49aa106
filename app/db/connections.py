"""The connection that a statement runs on: the open transaction's, else one for that statement."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any

import psycopg2
from sqlalchemy.engine import Connection
from sqlalchemy.exc import OperationalError

from app.db import engine, sqlite_driver
from app.db.base import db
from app.db.pool import Pool
from app.db.session import Session


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
            self._lender = connection_pool()
            self._taken = found = translating_errors(self._lender.lend)
        pooled = found.connection if isinstance(found, Connection) else found
        self._driver = pooled.dbapi_connection
        if self._driver is None:
            raise OperationalError(None, None, LookupError("The connection was lost."))
        return self._driver

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        """Give back what was lent for one statement."""
        try:
            if isinstance(error, (sqlite3.Error, psycopg2.Error)):
                raise engine.as_of_sqlalchemy(error, self._taken, self._driver) from error
            if error is not None and self._lender:
                self._taken.invalidate(error)  # it may be in the midst of something
        finally:
            if self._lender:
                self._lender.take_back(self._taken)


def connection_pool() -> Pool:
    """The running application's pool."""
    found: Pool = engine.running().pool  # type: ignore[assignment]
    return found


def translating_errors(source: Callable[[], Any]) -> Any:
    """What a function returns; the driver's errors come as SQLAlchemy's."""
    try:
        return source()
    except (sqlite3.Error, psycopg2.Error) as error:
        raise engine.as_of_sqlalchemy(error) from error


def _used() -> Any:
    """The connection that this context has in use already, or the pool's hold on it."""
    session = current_session()
    if session is None:
        return None
    work = session.work
    if work is not None:
        return work.bound or (work.begun() if work.pooled is None else work.pooled)
    return session.connection() if session.in_transaction() else None


def current_session() -> Session | None:
    """The session of this context, if it has one."""
    registry: Any = db.session.registry
    found: Session | None = registry.registry.get(registry.scopefunc())
    return found


def has_one_writer() -> bool:
    """Whether whoever writes keeps all others waiting, in all accounts: on SQLite."""
    return engine.running().dialect.name == "sqlite"


def sqlite_file() -> str | None:
    """The path of the database's file; None on PostgreSQL."""
    return engine.running().url.database if has_one_writer() else None


def check_time() -> None:
    """Between statements: refuse to go on where the transaction keeps others waiting too long."""
    session = current_session()
    if session and session.work and session.work.pooled is not None:
        found = session.work.pooled.dbapi_connection
        if isinstance(found, sqlite_driver.Driver):
            translating_errors(found.check_time)
