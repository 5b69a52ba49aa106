"""A whole list in one statement, read as it is written out: one snapshot, little memory.

It has a connection of its own, as the request's is needed for nothing that lasts as long. On
PostgreSQL a cursor of the server's keeps what was not fetched yet. Whoever stops reading for long
is cut off (`engines`), as an open snapshot keeps the database from tidying up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from app.collections.definition import Definition
from app.db import engine
from app.db.versioned_cache import VersionChecks
from app.records.store import Row
from app.types import JSONMapping

PIECE = 100  # rows, as many as a page has at most: each may be as large as a body


class Stream:
    """The rows of one statement; to be closed by whoever opened it."""

    def __init__(self, connection: Connection, rows: Any, names: Sequence[str]) -> None:
        self._connection, self._rows, self._names = connection, rows, names
        self._first: list[Any] = []

    def start(self, checked: VersionChecks) -> None:
        """Read the first row, and check the stamps that it carries. Raises Stale."""
        first = self._rows.fetchone()
        if first is None:
            checked.verify()
        else:
            self._first = [first]
            checked.check(first[len(self._names) :])

    def __iter__(self) -> Iterator[Row]:
        for rows in ([self._first], self._rows.partitions(PIECE)):
            for piece in rows:
                yield from (dict(zip(self._names, row, strict=False)) for row in piece)

    def close(self) -> None:
        """Give the connection back."""
        self._connection.close()


def open_stream(
    definition: Definition,
    names: Sequence[str],
    where: Sequence[Any],
    order_by: Sequence[Any],
    checked: VersionChecks,
    parameters: JSONMapping,
) -> Stream:
    """These fields of the records, in the statement that also checks the stamps. Raises Stale."""
    selected = dict(zip(definition.columns, definition.selected, strict=True))
    columns = [selected[name] for name in names]
    statement = sa.select(*columns, *checked.columns).where(*where).order_by(*order_by)
    connection = _connected()
    with ExitStack() as failed:
        failed.callback(connection.close)
        bound = {**parameters, **checked.parameters}
        stream = Stream(connection, connection.execute(statement, bound), names)
        stream.start(checked)
        failed.pop_all()
    return stream


def _connected() -> Connection:
    connection = engine.current_engine().connect()
    if connection.dialect.name == "postgresql":
        connection.execution_options(isolation_level="READ COMMITTED")
    return connection.execution_options(stream_results=True, yield_per=PIECE)
