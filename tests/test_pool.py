"""The pool's connections: each lent to one at a time, and none lost."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from threading import Lock

import pytest
from flask import Flask
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from app import db
from app.db.engine import Pool

THREADS, SIZE, TIMES = 8, 3, 500


def small(size: int, seconds: float) -> Pool:
    """A pool that makes no more connections than these."""
    return Pool(
        lambda: sqlite3.connect(":memory:", check_same_thread=False),
        pool_size=size,
        max_overflow=0,
        timeout=seconds,
        use_lifo=True,
    )


@pytest.mark.parametrize("database", ["sqlite"])
def test_pool_connection_is_lent_to_one_thread_and_never_lost(database: str) -> None:
    pool, lent, guard, most = small(SIZE, 30), set[int](), Lock(), 0

    def use(_: int) -> None:
        nonlocal most
        for _ in range(TIMES):
            entry = pool.acquire()
            with guard:
                assert id(entry) not in lent
                lent.add(id(entry))
                most = max(most, len(lent))
            entry.dbapi_connection.execute("SELECT 1")
            with guard:
                lent.discard(id(entry))
            pool.release(entry)

    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(use, range(THREADS)))
    assert 1 < most <= SIZE
    assert pool.checkedout() == 0
    assert most <= pool.checkedin() <= SIZE
    pool.dispose()


@pytest.mark.parametrize("database", ["sqlite"])
def test_pool_acquire_waits_and_times_out(database: str) -> None:
    pool = small(1, 0.2)
    entry = pool.acquire()
    with pytest.raises(PoolTimeout):
        pool.acquire()
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(lambda: pool.connect())
        pool.release(entry)
        with closing(waiting.result()) as connection:
            assert connection.dbapi_connection is entry.dbapi_connection
    pool.dispose()


def break_off(seen: list[object]) -> None:
    with db.driver() as driver, closing(driver.cursor()) as rows:
        seen.append(driver)
        rows.execute("SELECT 1")
        raise ZeroDivisionError


def test_pool_connection_of_interrupted_use_is_discarded(app: Flask) -> None:
    seen: list[object] = []
    with app.app_context():
        with pytest.raises(ZeroDivisionError):
            break_off(seen)
        with db.driver() as second:
            assert second is not seen[0]


def test_pool_connection_of_failed_statement_is_reused(app: Flask) -> None:
    with app.app_context():
        with pytest.raises(DBAPIError), db.driver() as first, closing(first.cursor()) as rows:
            rows.execute("SELECT nothing_of_that_name")
        with db.driver() as second, closing(second.cursor()) as rows:
            assert second is first
            rows.execute("SELECT 1")
            assert rows.fetchall() == [(1,)]
