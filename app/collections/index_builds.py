"""Builds indexes of tables with records without blocking their writers.

PostgreSQL does so outside of transactions only. An index is therefore built before the transaction
that changes the definition, under a name of its own, and takes its final name in that transaction.
One that is left over, because the change failed or its process was killed, is recognized by its
name and dropped. SQLite has one writer anyway: there the transaction creates the index.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from app import db, jobs
from app.collections.changes import Change
from app.db import engine, errors
from app.errors import Unavailable
from app.types import JSONMapping

PREFIX = "building_"
LONGEST_REBUILT = 57  # of a name, where PostgreSQL adds `_ccnew`
LOCK = 0x41747269786E  # one build at a time
TRIES, PAUSE = 300, 0.1  # seconds
BUSY = "The collection is too busy to build an index. Try again in a moment."


@dataclass
class Builds:
    """Indexes that are built, by the statement that would create them."""

    names: dict[str, str] = field(default_factory=dict)
    renamed: set[str] = field(default_factory=set)

    def remaining(self, statements: Sequence[str]) -> list[str]:
        """The statements besides those that drop indexes, or would create built ones."""
        return [
            text
            for text in statements
            if text not in self.names and not text.startswith("DROP INDEX ")
        ]

    def adopted(self, statements: Sequence[str]) -> list[str]:
        """The statements, where indexes that are built are renamed instead of created."""
        self.renamed |= self.names.keys() & set(statements)
        return [
            f"ALTER INDEX {self.names[text]} RENAME TO {_index_name(text)}"
            if text in self.names
            else text
            for text in statements
        ]


@contextmanager
def ahead(planned: Callable[[], Sequence[Change]]) -> Iterator[Builds]:
    """Build the new indexes of planned changes, for a transaction inside the block to adopt.

    Indexes of empty tables and of new columns are left to the transaction. Raises Unavailable.
    """
    changes = [] if db.has_one_writer() else planned()
    statements = [text for one in changes if _has_records(one) for text in one.new_indexes]
    if not statements:
        yield Builds()
        return
    with engine.owner_connection() as connection:
        _lock(connection)
        built, kept = Builds(), set[str]()
        try:
            for text in statements:
                _build(connection, text, built)
            yield built
            kept = built.renamed
        finally:
            with suppress(DBAPIError):  # `drop_unfinished` tries again
                _drop(connection, [built.names[text] for text in built.names.keys() - kept])


def _has_records(change: Change) -> bool:
    if not change.new_indexes:
        return False
    first = sa.select(sa.literal(1)).select_from(change.old.table).limit(1)
    try:
        return db.connection().execute(first).first() is not None
    except DBAPIError as error:
        if not errors.is_stale_schema(error):
            raise
        return False  # deleted meanwhile: the transaction says so


def _lock(connection: sa.Connection) -> None:
    # Without waiting inside PostgreSQL: builds wait for statements that run, waiting ones too.
    attempt = sa.select(sa.func.pg_try_advisory_lock(LOCK))
    for _ in range(TRIES):
        if connection.scalar(attempt):
            return
        time.sleep(PAUSE)
    raise Unavailable("Another index is being built. Try again in a moment.")


def _build(connection: sa.Connection, text: str, built: Builds) -> None:
    name = PREFIX + hashlib.sha256(text.encode()).hexdigest()[:20]
    statement = text.replace(f" INDEX {_index_name(text)} ", f" INDEX CONCURRENTLY {name} ", 1)
    built.names[text] = name
    try:
        _drop(connection, [name])  # what a killed process left
        _run(connection, statement)
    except DBAPIError as error:
        if errors.was_lock_conflict(error):
            raise Unavailable(BUSY) from error
        # Records do not fit: the transaction counts them.
        _drop(connection, [built.names.pop(text)])


def rebuild(names: Sequence[str]) -> None:
    """Write indexes anew without blocking writers. Raises Unavailable."""
    with engine.owner_connection() as connection:
        _lock(connection)
        quote = connection.dialect.identifier_preparer.quote
        for name in names:
            _drop(connection, [quote(f"{name[:LONGEST_REBUILT]}_ccnew")])  # of a killed process
            _run(connection, f"REINDEX INDEX CONCURRENTLY {quote(name)}")


def _index_name(text: str) -> str:
    return text.partition(" INDEX ")[2].partition(" ON ")[0]


@jobs.periodic(3600, "collections.drop_unfinished_indexes")
def drop_unfinished(payload: JSONMapping) -> None:
    """Drop indexes that killed processes left; not while an index is being built."""
    if db.has_one_writer():
        return
    unfinished = sa.text(
        "SELECT indexname FROM pg_indexes"
        " WHERE schemaname = current_schema() AND starts_with(indexname, :prefix)"
    )
    with engine.owner_connection() as connection:
        if connection.scalar(sa.select(sa.func.pg_try_advisory_lock(LOCK))):
            _drop(connection, connection.scalars(unfinished, {"prefix": PREFIX}).all())


def _drop(connection: sa.Connection, names: Sequence[str]) -> None:
    for name in names:
        _run(connection, f"DROP INDEX CONCURRENTLY IF EXISTS {name}")


def _run(connection: sa.Connection, statement: str) -> None:
    # Without parameters the driver does not interpret "%".
    connection.exec_driver_sql(statement, execution_options={"no_parameters": True})
