"""The engine: its options, its event listeners, and driver errors as SQLAlchemy's."""

from __future__ import annotations

import atexit
import re
import sqlite3
from contextvars import ContextVar
from weakref import WeakSet

import sqlalchemy as sa
from psycopg2.errors import ReadOnlySqlTransaction
from sqlalchemy.engine import Connection, ExceptionContext
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.pool import ConnectionPoolEntry, PoolProxiedConnection

from app import config
from app.db import pool, postgres_driver, postgres_session, sqlite_driver

# If a network drops all packets, the connection is closed after half a minute at most. The default
# would hold a thread for hours.
KEEPALIVE = {
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 25_000,
}
IN_VALUES = re.compile(r"IN \(VALUES (\((?:\?, )*\?\)(?:, \((?:\?, )*\?\))*)\)")
UNUSABLE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
# The transaction of a stopped process, or of a client that reads a list too slowly, blocks others
# for at most this long: then PostgreSQL rolls it back.
IDLE_SECONDS = 60

_prepared: WeakSet[sa.Engine] = WeakSet()
reads_from: ContextVar[sa.Engine | None] = ContextVar("reads_from", default=None)
"""The replica's engine in a context that reads there."""


def current_engine() -> sa.Engine:
    """Return the engine that statements go to: the primary's, or inside `replica.reading` its."""
    return reads_from.get() or primary()


def primary() -> sa.Engine:
    """Return the engine of the running application's database."""
    engine: sa.Engine = config.context().app.extensions["atrium.engine"]
    return engine


def has_one_writer() -> bool:
    """Whether the database takes one writer at a time, over all accounts: SQLite."""
    return current_engine().dialect.name == "sqlite"


def sqlite_file() -> str | None:
    """Return the path of the database file; None on PostgreSQL."""
    return current_engine().url.database if has_one_writer() else None


def options(settings: config.Config) -> dict[str, object]:
    """Return the arguments of `create_engine` for these settings."""
    common: dict[str, object] = {"isolation_level": "AUTOCOMMIT", "hide_parameters": True}
    common |= {"poolclass": pool.Pool, "pool_use_lifo": True}
    if settings.env != "test":
        # These warnings are for tests, and wrong for conditions that are always false (x IN ()).
        common |= {"enable_from_linting": False}
    if settings.database_url.startswith("sqlite"):
        common |= {"insertmanyvalues_page_size": sqlite_driver.ROWS}
        return common | {"connect_args": {"factory": _sqlite_driver(settings)}}
    connect: dict[str, object] = {"connect_timeout": 5, "application_name": "atrium", **KEEPALIVE}
    connect |= _postgres_factories(settings)
    return common | {
        "connect_args": connect,
        "pool_size": pool.POOL_SIZE,
        "max_overflow": pool.MAX_OVERFLOW,
        "pool_timeout": pool.TIMEOUT_SECONDS,
    }


def _sqlite_driver(settings: config.Config) -> type[sqlite_driver.Driver]:
    if not settings.otel_exporter_otlp_endpoint:
        return sqlite_driver.Driver
    from app.db import traced_drivers

    return traced_drivers.SqliteDriver


def _postgres_factories(settings: config.Config) -> dict[str, object]:
    driver, cursor = postgres_driver.Driver, postgres_driver.Cursor
    if settings.otel_exporter_otlp_endpoint:
        from app.db import traced_drivers

        driver, cursor = traced_drivers.PostgresDriver, traced_drivers.PostgresCursor
    return {"connection_factory": driver, "cursor_factory": cursor}


def prepare(engine: sa.Engine) -> None:
    """Register the engine's listeners."""
    _prepared.add(engine)

    @sa.event.listens_for(engine, "handle_error", retval=True)
    def translate_unusable(context: ExceptionContext) -> DBAPIError | None:
        original = context.original_exception
        return _as_unavailable(original) if _is_unusable(original) else None

    if engine.dialect.name != "sqlite":
        settings = {"idle_in_transaction_session_timeout": f"{IDLE_SECONDS}s"}
        postgres_session.start_each(engine, settings)
        return

    @sa.event.listens_for(engine, "before_cursor_execute", retval=True)
    def rewrite_in_values(
        connection: object, cursor: object, text: str, parameters: object, *rest: object
    ) -> tuple[str, object]:
        # SQLite uses an index for IN (SELECT ...), but not for IN (VALUES ...).
        if "IN (VALUES (" in text:
            text = IN_VALUES.sub(r"IN (SELECT * FROM (VALUES \1))", text)
        return text, parameters


@atexit.register
def close() -> None:
    """Close the idle connections as the process ends."""
    sqlite_driver.Driver.closes_in_turn = True
    for engine in list(_prepared):
        engine.dispose()


def to_sqlalchemy_error(
    error: BaseException,
    connection: Connection | PoolProxiedConnection | ConnectionPoolEntry | None = None,
    driver: object = None,
) -> DBAPIError:
    """Wrap a driver's error as SQLAlchemy would; invalidates a lost connection."""
    if _is_unusable(error):
        return _as_unavailable(error)
    dialect = current_engine().dialect
    base: type[Exception] = dialect.loaded_dbapi.Error
    lost = connection is not None and dialect.is_disconnect(error, driver, None)  # type: ignore[arg-type]
    if connection is not None and lost:
        connection.invalidate(error)
    wrapped: DBAPIError = DBAPIError.instance(  # type: ignore[assignment]
        None, None, error, base, connection_invalidated=lost, dialect=dialect
    )
    return wrapped


def _is_unusable(error: BaseException) -> bool:
    # A read-only server, or a file that is damaged or no database: drivers class these otherwise.
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return isinstance(error, ReadOnlySqlTransaction) or code in UNUSABLE


def _as_unavailable(error: BaseException) -> DBAPIError:
    return OperationalError(None, None, error)
