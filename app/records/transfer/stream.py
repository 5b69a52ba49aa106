"""Streams a whole list from one statement: one snapshot, little memory.

It has its own connection, and on PostgreSQL a server-side cursor. Clients that stop reading are
disconnected (`app/db/engine.py`), as an open snapshot blocks vacuuming.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from app.context import deadline, tenancy
from app.db import engine, sqlite_driver
from app.db.versioned_cache import VersionChecks
from app.records.store import Row
from app.records.store.reads import Selection

NONE: Mapping[str, sa.ColumnElement[Any]] = {}
BATCH_SIZE = 100  # rows, as in the largest page: each may be as large as a body
DEADLINES = 3
"""A statement for a batch may take so many times as long as others: it reads and sorts more."""


class Stream:
    """The rows of one statement; the caller closes it."""

    def __init__(self, connection: Connection, rows: Any, names: Sequence[str]) -> None:
        self._connection, self._rows, self._names = connection, rows, names
        self._limit = deadline.limit.get()
        self._first: list[Any] = []

    def start(self, version_checks: VersionChecks) -> None:
        """Read the first row and verify its version checks. Raises Stale."""
        first = self._rows.fetchone()
        if first is None:
            version_checks.verify()
        else:
            self._first = [first]
            version_checks.check(first[len(self._names) :])

    def __iter__(self) -> Iterator[Row]:
        batch = self._first
        while batch:
            yield from (dict(zip(self._names, row, strict=False)) for row in batch)
            with sqlite_driver.fetching(self._connection, self._limit):
                batch = self._rows.fetchmany(BATCH_SIZE)

    def close(self) -> None:
        """Release the connection."""
        self._connection.close()


def open_stream(
    selection: Selection,
    names: Sequence[str],
    order_by: Sequence[Any],
    extra_columns: Mapping[str, sa.ColumnElement[Any]] = NONE,
) -> Stream:
    """Open a stream of these fields, in a statement with version checks. Raises Stale."""
    definition, version_checks = selection.definition, selection.version_checks
    selected = dict(zip(definition.columns, definition.selected, strict=True))
    columns = [*(selected[name] for name in names), *extra_columns.values()]
    statement = sa.select(*columns, *version_checks.columns).where(*selection.where)
    statement = statement.order_by(*order_by)
    all_names, connection = [*names, *extra_columns], _open_connection()
    with ExitStack() as failed:
        failed.callback(connection.close)
        longer = deadline.multiplied(DEADLINES)
        with tenancy.through_views(), deadline.within(longer):
            stream = Stream(
                connection, connection.execute(statement, selection.parameters), all_names
            )
            stream.start(version_checks)
        failed.pop_all()
    return stream


def _open_connection() -> Connection:
    connection = engine.current_engine().connect()
    if connection.dialect.name == "postgresql":
        connection.execution_options(isolation_level="READ COMMITTED")
    return connection.execution_options(stream_results=True, yield_per=BATCH_SIZE)
