"""A connection pool that lends a connection for a single statement, and counts for `/metrics`.

Leans on SQLAlchemy's pool internals (`_do_get`, `_do_return_conn`, `_inc_overflow`,
`_dec_overflow`, `_checkin_failed`, `_pool.not_empty`): without the proxy that `connect()` returns,
a warm GET takes 13 % less CPU, a create 5 %. Only who waits for a connection, or opens one, pays
for the figures. `tests/test_library_insides.py` notices if these internals change.
"""

from __future__ import annotations

import select
import threading
import time
from typing import Any, Literal

import psycopg2
import sqlalchemy as sa
from psycopg2.extensions import connection as Connection
from sqlalchemy.exc import DisconnectionError
from sqlalchemy.pool import ConnectionPoolEntry, QueuePool

from app.context.metrics import count, set_gauge
from app.db import metrics

# The connections of a process to PostgreSQL: those that stay open, and further ones in bursts. Few
# suffice, as few requests run at once (4, `app/auth/guard/fair_turns.py`). Operators plan with the
# sum: docs/scaling.md, and docs/deployment.md for PgBouncer.
POOL_SIZE, MAX_OVERFLOW = 8, 8
TIMEOUT_SECONDS = 10  # for a connection, if all are lent


class _CountedWaits(threading.Condition):
    def wait(self, timeout: float | None = None) -> bool:
        """Wait until a connection is returned; returns whether one was in time."""
        started = time.monotonic()
        try:
            return super().wait(timeout)
        finally:
            count(metrics.WAITS)
            count(metrics.WAIT_SECONDS, amount=time.monotonic() - started)


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
        set_gauge(metrics.LIMIT, self.size() + self._max_overflow)
        set_gauge(metrics.OPEN, self.size() + self.overflow())

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


def _mark_new(connection: Connection, record: ConnectionPoolEntry) -> None:
    record.info["is new"] = True


def _replace_broken(connection: Connection, record: ConnectionPoolEntry, fairy: object) -> None:
    is_new = record.info.pop("is new", False)
    # On an idle connection the server sends nothing but its end, or a notice: only if it has sent
    # something, a query finds out which.
    if connection.closed or (_has_input(connection) and not _responds(connection)):
        if is_new:  # the server is not back yet
            raise psycopg2.OperationalError("The new connection broke, too.")
        raise DisconnectionError  # the pool then opens a new one


def _has_input(connection: Connection) -> bool:
    socket = select.poll()
    socket.register(connection.fileno(), select.POLLIN)
    return bool(socket.poll(0))


def _responds(connection: Connection) -> bool:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except psycopg2.Error:
        return False
    return True
