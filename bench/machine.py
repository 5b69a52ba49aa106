"""Compares the speed of this machine with the reference machine of the bounds."""

from __future__ import annotations

import os
import statistics
import sys
import time
from contextlib import closing

import psycopg2

SELECT_BY_KEY_US = 97  # in one thread through the bare driver, on the machine of reference
BLOCKS, TIMES = 9, 500


def stay_on_one_core() -> None:
    """Have this process and those it starts share a core.

    Where two wait for each other anyway, to wake one on another core only adds, on a virtual
    machine as much as the work itself.
    """
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def say(url: str) -> None:
    """Print the comparison, with a local PostgreSQL."""
    here = select_by_key(url)
    sys.stdout.write(
        f"a SELECT by key takes {here:.0f} us here, {here / SELECT_BY_KEY_US:.1f} times"
        f" the {SELECT_BY_KEY_US} us of the machine of reference\n"
    )
    sys.stdout.flush()


def select_by_key(url: str) -> float:
    """The median microseconds of a SELECT by key."""
    with closing(psycopg2.connect(url)) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TEMPORARY TABLE t AS SELECT i FROM generate_series(1, 10000) AS i")
        cursor.execute("ALTER TABLE t ADD PRIMARY KEY (i)")
        connection.commit()
        connection.autocommit = True
        return statistics.median(_block(cursor) for _ in range(BLOCKS))


def _block(cursor: psycopg2.extensions.cursor) -> float:
    begun = time.perf_counter()
    for key in range(TIMES):
        cursor.execute("SELECT i FROM t WHERE i = %s", (key + 1,))
        cursor.fetchone()
    return (time.perf_counter() - begun) / TIMES * 1e6
