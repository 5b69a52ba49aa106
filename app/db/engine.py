"""What connects to the database: its options, and its errors as SQLAlchemy's."""

from __future__ import annotations

import atexit
import re
import sqlite3
from typing import Any
from weakref import WeakSet

import sqlalchemy as sa
from psycopg2.errors import ReadOnlySqlTransaction
from sqlalchemy.exc import DBAPIError, OperationalError

from app import config
from app.db import postgres_driver, sqlite_driver
from app.db.pool import Pool

# Where a network drops all packets, a connection is given up after half a minute at most, and not
# after hours in which it would hold a thread.
SILENCE = {
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 25_000,
}
KEYS = re.compile(r"IN \(VALUES (\((?:\?, )*\?\)(?:, \((?:\?, )*\?\))*)\)")
UNUSABLE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
# A process that stands still in a transaction, or a client that a list is read to, keeps others
# waiting for so long: its transaction is taken back.
IDLE_SECONDS = 60
POSTGRES_OPTIONS = "-c timezone=UTC -c default_transaction_isolation=read\\ committed"


_prepared: WeakSet[sa.Engine] = WeakSet()


def running() -> sa.Engine:
    """What connects to the running application's database."""
    found: sa.Engine = config.context().app.extensions["atrium.engine"]
    return found


def options(settings: config.Config) -> dict[str, Any]:
    """How the database that the settings name is connected to."""
    common: dict[str, Any] = {"isolation_level": "AUTOCOMMIT", "hide_parameters": True}
    common |= {"poolclass": Pool}
    if settings.env != "test":
        # Its warnings are for tests, and wrong of conditions that come to nothing, as of x IN ().
        common |= {"enable_from_linting": False}
    if settings.database_url.startswith("sqlite"):
        common |= {"insertmanyvalues_page_size": sqlite_driver.ROWS}
        return common | {"connect_args": {"factory": sqlite_driver.Driver}}
    idle = f"-c idle_in_transaction_session_timeout={IDLE_SECONDS}s"
    connect: dict[str, Any] = {"connect_timeout": 5, "options": f"{POSTGRES_OPTIONS} {idle}"}
    connect |= {"application_name": "atrium", **SILENCE}
    connect |= {
        "connection_factory": postgres_driver.Driver,
        "cursor_factory": postgres_driver.Cursor,
    }
    return common | {
        "connect_args": connect,
        "pool_size": 8,
        "max_overflow": 8,
        "pool_timeout": 10,
    }


def prepare(engine: sa.Engine) -> None:
    """Have an engine tell that its database is unusable, and keep references checked."""
    _prepared.add(engine)  # whose connections are closed in order when the process ends

    @sa.event.listens_for(engine, "handle_error", retval=True)
    def handle(context: Any) -> Exception | None:
        original = context.original_exception
        return _as_unavailable(original) if _is_unusable(original) else None

    if engine.dialect.name != "sqlite":
        return

    @sa.event.listens_for(engine, "checkin")
    def restore_foreign_keys(connection: sqlite3.Connection | None, record: Any) -> None:
        # Never without need: the pragma has SQLite prepare every kept statement anew.
        if connection is not None and record.info.pop("unchecked", False):
            connection.execute("PRAGMA foreign_keys = ON")

    @sa.event.listens_for(engine, "before_cursor_execute", retval=True)
    def let_indexes_serve(
        connection: Any, cursor: Any, text: str, parameters: Any, *rest: Any
    ) -> tuple[str, Any]:
        # SQLite finds rows by an index for keys that are selected, but not for several values.
        if "IN (VALUES (" in text:
            text = KEYS.sub(r"IN (SELECT * FROM (VALUES \1))", text)
        return text, parameters


@atexit.register
def close() -> None:
    """Close the idle connections of a process that is about to end."""
    sqlite_driver.Driver.closes_in_turn = True
    for engine in list(_prepared):
        engine.dispose()


def as_of_sqlalchemy(error: Any, connection: Any = None, driver: Any = None) -> DBAPIError:
    """What SQLAlchemy would make of a driver's error; a connection that is lost is given up."""
    if _is_unusable(error):
        return _as_unavailable(error)
    dialect = running().dialect
    base: Any = dialect.loaded_dbapi.Error
    lost = connection is not None and dialect.is_disconnect(error, driver, None)
    if lost:
        connection.invalidate(error)
    told: Any = DBAPIError.instance(
        None, None, error, base, connection_invalidated=lost, dialect=dialect
    )
    return told


def _is_unusable(error: Any) -> bool:
    # A server that only reads for now, or a file that is none or damaged: to drivers that is
    # something else.
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return isinstance(error, ReadOnlySqlTransaction) or code in UNUSABLE


def _as_unavailable(error: Any) -> DBAPIError:
    return OperationalError(None, None, error)
