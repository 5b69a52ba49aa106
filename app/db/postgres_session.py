"""A PostgreSQL session: its settings, and the refusal of poolers that share it.

Roles, prepared statements and LISTEN belong to a session. A pooler such as PgBouncer in transaction
mode changes it between transactions: statements would fail, or find no row of their account.
"""

from __future__ import annotations

import select
import time
from collections.abc import Mapping
from contextlib import closing
from itertools import chain

import psycopg2
import sqlalchemy as sa
from psycopg2 import extensions
from sqlalchemy.pool import ConnectionPoolEntry

SETTINGS = {"timezone": "UTC", "default_transaction_isolation": "read committed"}
REFUSAL = (
    "a pooler gives each transaction another session: set pool_mode = session in PgBouncer, or"
    " connect to PostgreSQL itself"
)
PASS_SECONDS, PROBE_SECONDS, HELD_SECONDS = 60, 2, 0.1
BACKEND = "SELECT pg_backend_pid()"

_passed_at: dict[str, float] = {}


class PoolerError(psycopg2.OperationalError):
    """Sessions end with their transactions."""


def start_each(engine: sa.Engine, settings: Mapping[str, str]) -> None:
    """Apply SETTINGS and these to every connection of an engine; refuse shared sessions.

    Not by the startup parameter `options`, as PgBouncer refuses it.
    """

    @sa.event.listens_for(engine, "connect", insert=True)  # before SQLAlchemy's own statements
    def start(connection: extensions.connection, record: ConnectionPoolEntry) -> None:
        _start(connection, {**SETTINGS, **settings})


def _start(connection: extensions.connection, settings: dict[str, str]) -> None:
    autocommit, connection.autocommit = connection.autocommit, True
    check(connection)
    calls = ", ".join(["set_config(%s, %s, false)"] * len(settings))
    with closing(connection.cursor(cursor_factory=extensions.cursor)) as cursor:
        cursor.execute(f"SELECT {calls}", list(chain(*settings.items())))
    connection.autocommit = autocommit


def check(connection: extensions.connection) -> None:
    """Raise PoolerError if sessions end with transactions; looks again after PASS_SECONDS."""
    if time.monotonic() - _passed_at.get(connection.dsn, -PASS_SECONDS) < PASS_SECONDS:
        return
    with closing(connection.cursor(cursor_factory=extensions.cursor)) as cursor:
        # A pooler makes up the process id that it sends to its client.
        if _backend(cursor) != connection.get_backend_pid() and _shares(connection, cursor):
            raise PoolerError(REFUSAL)
    _passed_at[connection.dsn] = time.monotonic()


def refusal(error: Exception) -> str | None:
    """Return REFUSAL if a pooler was the reason of an error, else None."""
    original = getattr(error, "orig", None) or error
    return REFUSAL if isinstance(original, PoolerError) else None


def _shares(connection: extensions.connection, cursor: extensions.cursor) -> bool:
    own = {_backend(cursor), _backend(cursor)}
    dsn = extensions.make_dsn(connection.dsn, password=connection.info.password)
    with closing(psycopg2.connect(dsn, async_=True)) as other:
        deadline = time.monotonic() + PROBE_SECONDS
        try:
            _wait(other, deadline)
            with closing(other.cursor()) as probe:
                # A shared session that was just released is the first that another client gets.
                probe.execute(f"{BACKEND} FROM pg_sleep(%s)", (HELD_SECONDS,))
                own.add(_backend(cursor))
                _wait(other, deadline)
                return len(own) > 1 or probe.fetchone() == (own.pop(),)
        except TimeoutError:  # all sessions are taken, and this connection has held its own
            return False


def _backend(cursor: extensions.cursor) -> int:
    cursor.execute(BACKEND)
    (process_id,) = cursor.fetchone() or (0,)
    return int(process_id)


def _wait(connection: extensions.connection, deadline: float) -> None:
    events = {extensions.POLL_READ: select.POLLIN, extensions.POLL_WRITE: select.POLLOUT}
    while (state := connection.poll()) != extensions.POLL_OK:
        waiting = select.poll()
        waiting.register(connection.fileno(), events[state])
        if not waiting.poll(max(0, deadline - time.monotonic()) * 1000):
            raise TimeoutError
