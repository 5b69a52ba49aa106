"""The engine: its pool, its options, its event listeners, and driver errors as SQLAlchemy's.

The pool lends a connection for a single statement, and counts for `/metrics`. It leans on
SQLAlchemy's pool internals (`_do_get`, `_do_return_conn`, `_inc_overflow`, `_dec_overflow`,
`_checkin_failed`, `_pool.not_empty`): without the proxy that `connect()` returns, a warm GET takes
13 % less CPU, a create 5 %. Only who waits for a connection, or opens one, pays for the figures.
`tests/test_library_insides.py` notices if these internals change.
"""

from __future__ import annotations

import atexit
import re
import select
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, Literal
from weakref import WeakSet

import psycopg2
import sqlalchemy as sa
from prometheus_client import Counter, Gauge
from psycopg2.errors import ReadOnlySqlTransaction
from psycopg2.extensions import connection as PostgresConnection
from sqlalchemy.engine import Connection, ExceptionContext
from sqlalchemy.exc import DBAPIError, DisconnectionError, OperationalError, SQLAlchemyError
from sqlalchemy.pool import ConnectionPoolEntry, NullPool, PoolProxiedConnection, QueuePool

from app import config
from app.context.metrics import count, set_gauge
from app.db import postgres_driver, sqlite_driver

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
# The connections of a process to PostgreSQL: those that stay open, and further ones in bursts. Few
# suffice, as few requests run at once (4, `app/auth/guard/fair_turns.py`). Operators plan with the
# sum: docs/scaling.md, and docs/deployment.md for PgBouncer.
POOL_SIZE, MAX_OVERFLOW = 8, 8
TIMEOUT_SECONDS = 10  # for a connection, if all are lent
# The transaction of a stopped process, or of a client that reads a list too slowly, blocks others
# for at most this long: then PostgreSQL rolls it back.
IDLE_SECONDS = 60

_gauge = partial(Gauge, registry=None, multiprocess_mode="livesum")
LIMIT = _gauge("atrium_db_pool_limit", "Connections that the pools may open.")
OPEN = _gauge("atrium_db_pool_open", "Open connections of the pools.")
WAITS = Counter("atrium_db_pool_waits_total", "Waits for a connection.", registry=None)
WAIT_SECONDS = Counter(
    "atrium_db_pool_wait_seconds_total", "Time spent waiting for a connection.", registry=None
)
REPLICA_LAG = Gauge(
    "atrium_db_replica_lag_seconds",
    "Age of what the replica has, while somebody reads there.",
    registry=None,
    multiprocess_mode="livemax",
)
METRICS = (LIMIT, OPEN, WAITS, WAIT_SECONDS, REPLICA_LAG)

_prepared: WeakSet[sa.Engine] = WeakSet()
reads_from: ContextVar[sa.Engine | None] = ContextVar("reads_from", default=None)
"""The replica's engine in a context that reads there."""
LOCK_MILLISECONDS = 30_000


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


class _CountedWaits(threading.Condition):
    def wait(self, timeout: float | None = None) -> bool:
        """Wait until a connection is returned; returns whether one was in time."""
        started = time.monotonic()
        try:
            return super().wait(timeout)
        finally:
            count(WAITS)
            count(WAIT_SECONDS, amount=time.monotonic() - started)


class Pool(QueuePool):
    """A pool that also hands out its entries, for one statement outside any transaction."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._pool.not_empty = _CountedWaits(self._pool.mutex)  # type: ignore[attr-defined]

    def _inc_overflow(self) -> bool:
        may_open = super()._inc_overflow()
        self._count_open()
        return may_open

    def _dec_overflow(self) -> Literal[True]:
        super()._dec_overflow()
        self._count_open()
        return True

    def _count_open(self) -> None:
        set_gauge(LIMIT, self.size() + self._max_overflow)
        set_gauge(OPEN, self.size() + self.overflow())

    def acquire(self) -> ConnectionPoolEntry:
        """Check out an entry with a working connection; the caller must `release` it."""
        entry = self._do_get()
        try:
            self._check_out(entry)
        except BaseException as error:  # return the slot, whatever went wrong
            entry._checkin_failed(error, _fairy_was_created=False)  # type: ignore[attr-defined]
            raise
        return entry

    def _check_out(self, entry: ConnectionPoolEntry) -> None:
        connection = entry.get_connection()  # type: ignore[attr-defined]
        if not self.dispatch.checkout:
            return
        try:
            self.dispatch.checkout(connection, entry, None)
        except DisconnectionError as error:
            entry.invalidate(error)
            self.dispatch.checkout(entry.get_connection(), entry, None)  # type: ignore[attr-defined]

    def release(self, entry: ConnectionPoolEntry) -> None:
        self._do_return_conn(entry)


class UncountedPool(Pool):
    """The pool of a replica: the gauges of `/metrics` are the primary's."""

    def _count_open(self) -> None:
        pass


def pre_ping(engine: sa.Engine) -> None:
    """Replace PostgreSQL connections that broke while idle, before a request gets them.

    A server restart closes all connections: without this each pooled one fails a request, perhaps
    long after the server is back. Unlike SQLAlchemy's `pool_pre_ping` it costs no round trip.
    """
    sa.event.listen(engine, "connect", _mark_new)
    sa.event.listen(engine, "checkout", _replace_broken)


def _mark_new(connection: PostgresConnection, record: ConnectionPoolEntry) -> None:
    record.info["is new"] = True


def _replace_broken(
    connection: PostgresConnection, record: ConnectionPoolEntry, fairy: object
) -> None:
    is_new = record.info.pop("is new", False)
    # On an idle connection the server sends nothing but its end, or a notice: only if it has sent
    # something, a query finds out which.
    if connection.closed or (_has_input(connection) and not _responds(connection)):
        if is_new:  # the server is not back yet
            raise psycopg2.OperationalError("The new connection broke, too.")
        raise DisconnectionError  # the pool then opens a new one


def _has_input(connection: PostgresConnection) -> bool:
    socket = select.poll()
    socket.register(connection.fileno(), select.POLLIN)
    return bool(socket.poll(0))


def _responds(connection: PostgresConnection) -> bool:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except psycopg2.Error:
        return False
    return True


def options(settings: config.Config) -> dict[str, object]:
    """Return the arguments of `create_engine` for these settings."""
    common: dict[str, object] = {"isolation_level": "AUTOCOMMIT", "hide_parameters": True}
    common |= {"poolclass": Pool, "pool_use_lifo": True}
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
        "pool_size": POOL_SIZE,
        "max_overflow": MAX_OVERFLOW,
        "pool_timeout": TIMEOUT_SECONDS,
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
        postgres_driver.start_sessions(engine, settings)
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


@contextmanager
def owner_connection(url: sa.URL | None = None) -> Iterator[sa.Connection]:
    """A connection of its own, in autocommit, that waits LOCK_MILLISECONDS at most for a lock.

    By default to the primary.
    """
    own_engine = sa.create_engine(
        url or primary().url,
        isolation_level="AUTOCOMMIT",
        hide_parameters=True,
        poolclass=NullPool,
        connect_args={
            "connect_timeout": 5,
            "application_name": "atrium",
            **KEEPALIVE,
        },
    )
    postgres_driver.start_sessions(own_engine, {"lock_timeout": str(LOCK_MILLISECONDS)})
    with own_engine.connect() as connection:
        yield connection


def pooler_refusal() -> str | None:
    """Return why the database's pooler is refused; None if it is not, or if nothing answers."""
    if has_one_writer():
        return None
    try:
        with owner_connection():
            return None
    except SQLAlchemyError as error:
        return postgres_driver.session_refusal(error)
