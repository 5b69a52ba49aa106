"""Reads on a replica, by callers who accept data of some seconds ago.

How far a replica lags is measured without a clock of the servers: a thread notes the primary's
position in its log and when it was there. Once the replica has replayed that position, it has all
that was committed before. The thread runs while there are such callers.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import lru_cache
from math import inf

import psycopg2
import sqlalchemy as sa
import structlog
from flask import Flask
from sqlalchemy.exc import SQLAlchemyError

from app import config
from app.context.metrics import set_gauge
from app.db import engine, session
from app.db.transactions import refuse_transactions

log = structlog.get_logger()

LASTING = frozenset({"id", "account_id", "created_at", "created_by"})
"""Fields that no write changes."""
ACCEPTS_WRITES = "it is no replica: it accepts writes"
PAUSE_SECONDS, IDLE_SECONDS, RETRY_SECONDS = 0.25, 60, 2
MAX_POSITIONS = 4_000  # of a replica that is behind: the oldest 1,000 seconds count
IDENTITY = sa.text("SELECT system_identifier::text, pg_is_in_recovery() FROM pg_control_system()")
WRITTEN = sa.text("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn")
REPLAYED = sa.text(
    "SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() - '0/0'::pg_lsn END"
)


class PrimaryRequired(Exception):
    """The read has to go to the primary."""


class NoReplica(Exception):
    """The server of the replica's address does not follow the primary."""


@contextmanager
def reading() -> Iterator[None]:
    """Read on the replica inside the block. Raises PrimaryRequired for anything but reads."""
    if session.current_work() is not None:
        raise PrimaryRequired
    own = session.current_session()
    if own is not None:
        own.rollback()  # gives a connection of the primary back
    token = engine.reads_from.set(_engine())
    try:
        with refuse_transactions(PrimaryRequired()):
            yield
    finally:
        engine.reads_from.reset(token)
        own = session.current_session()
        if own is not None:
            own.rollback()


def require_lasting(names: Collection[tuple[str, ...]]) -> None:
    """Inside `reading`: check that a rule names only fields that never change.

    Rights are never decided by old values. Raises PrimaryRequired.
    """
    if engine.reads_from.get() is not None and not all(
        len(name) == 1 and name[0] in LASTING for name in names
    ):
        raise PrimaryRequired


def lag() -> float:
    """The age of what the replica has, in seconds at most; `inf` if it is not known (yet)."""
    if not config.current().database_replica_url:
        return inf
    return _follower(config.running(), os.getpid()).lag()


def catch_up(seconds: float) -> float:
    """Wait until the replica has what the primary has now; returns the seconds.

    Raises NoReplica, TimeoutError.
    """
    with engine.owner_connection() as primary, _connect() as replica:
        _check_identity(primary, replica)
        begun, position = time.monotonic(), int(primary.scalar(WRITTEN))
        while (missing := position - _replayed(replica)) > 0:
            if time.monotonic() - begun > seconds:
                raise TimeoutError(f"{missing:,} bytes behind after {seconds:.0f} s")
            time.sleep(0.01)
        return time.monotonic() - begun


def _engine() -> sa.Engine:
    found: sa.Engine = config.context().app.extensions["atrium.replica_engine"]
    return found


@contextmanager
def _connect() -> Iterator[sa.Connection]:
    with engine.owner_connection(_engine().url) as connection:
        yield connection


def _check_identity(primary: sa.Connection, replica: sa.Connection) -> None:
    identity, is_replica = replica.execute(IDENTITY).one()
    if not is_replica:
        raise NoReplica(ACCEPTS_WRITES)
    if primary.execute(IDENTITY).one()[0] != identity:
        raise NoReplica("it follows another server")


def _replayed(replica: sa.Connection) -> int:
    position = replica.scalar(REPLAYED)
    if position is None:
        raise NoReplica(ACCEPTS_WRITES)
    return int(position)


@lru_cache
def _follower(app: Flask, process: int) -> _Follower:
    # Per process, as threads do not survive a fork.
    return _Follower(app)


class _Follower:
    """Measures the lag while somebody wants to know it."""

    def __init__(self, app: Flask) -> None:
        self._app = app
        self._lock = threading.Lock()
        self._is_running = False
        self._wanted_at = self._current_at = -inf

    def lag(self) -> float:
        """The age of what the replica has; begins to measure it."""
        now = self._wanted_at = time.monotonic()
        with self._lock:
            if not self._is_running:
                self._is_running, self._current_at = True, -inf
                threading.Thread(target=self._run, name="replica", daemon=True).start()
        return now - self._current_at

    def _run(self) -> None:
        pause = threading.Event()
        with self._app.app_context():
            while not self._ends():
                try:
                    self._follow(pause)
                except (SQLAlchemyError, psycopg2.Error, NoReplica) as error:
                    self._current_at = -inf  # reads go to the primary meanwhile
                    set_gauge(engine.REPLICA_LAG, inf)
                    log.warning("the replica is not followed", error=_reason(error))
                    pause.wait(RETRY_SECONDS)

    def _follow(self, pause: threading.Event) -> None:
        positions = deque[tuple[float, int]]()
        with engine.owner_connection() as primary, _connect() as replica:
            _check_identity(primary, replica)
            # The address may have led to another server before: all read from this one now.
            _engine().dispose()
            while time.monotonic() - self._wanted_at < IDLE_SECONDS:
                now = time.monotonic()  # before the position: what it has is no older
                if len(positions) < MAX_POSITIONS:
                    positions.append((now, int(primary.scalar(WRITTEN))))
                replayed = _replayed(replica)
                while positions and positions[0][1] <= replayed:
                    self._current_at = positions.popleft()[0]
                set_gauge(engine.REPLICA_LAG, time.monotonic() - self._current_at)
                pause.wait(PAUSE_SECONDS)

    def _ends(self) -> bool:
        with self._lock:
            if time.monotonic() - self._wanted_at >= IDLE_SECONDS:
                self._is_running = False
            return not self._is_running


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, NoReplica) else type(error).__name__
