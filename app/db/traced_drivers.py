"""Connections and cursors that record a span of each statement (`app.context.tracing`).

The cursor is where all statements pass: SQLAlchemy's, prepared ones, and those of the audit log.
Only loaded if spans are exported.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import Any, Self

from app.context import tracing
from app.context.spans import Span
from app.db import postgres_driver, sqlite_driver
from app.db.postgres_driver import Parameters, Query, ServerStatement

SQLITE, POSTGRESQL = "sqlite", "postgresql"
ENDINGS = {b"COMMIT": "COMMIT", b"ROLLBACK": "ROLLBACK"}
UNKNOWN = "SQL"  # text that may have parameters in it


class SqliteCursor(sqlite3.Cursor):
    """A cursor of SQLite that records statements."""

    def execute(self, sql: str, parameters: Any = (), /) -> Self:
        """Run a statement."""
        with tracing.statement(SQLITE, sql):
            return super().execute(sql, parameters)

    def executemany(self, sql: str, parameters: Iterable[Any], /) -> Self:
        """Run a statement many times."""
        with tracing.statement(SQLITE, sql):
            return super().executemany(sql, parameters)


class SqliteDriver(sqlite_driver.Driver):
    """A connection to SQLite that records statements and commits."""

    def cursor(self, *args: Any, **options: Any) -> Any:
        if not args:
            options.setdefault("factory", SqliteCursor)
        return super().cursor(*args, **options)

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        """Run a statement by a cursor that records; sqlite3 would choose another."""
        return self._plain_cursor().execute(sql, parameters)

    def executemany(self, sql: str, parameters: Iterable[Any], /) -> sqlite3.Cursor:
        """Run a statement many times."""
        return self._plain_cursor().executemany(sql, parameters)

    def _plain_cursor(self) -> SqliteCursor:
        return sqlite3.Connection.cursor(self, SqliteCursor)

    def commit(self) -> None:
        if not self.in_transaction:
            super().commit()
            return
        with tracing.statement(SQLITE, "COMMIT"):
            super().commit()


class _Text(str):
    """A statement as it is sent; `text` is the one that a span shows."""

    text: str


class _Bytes(bytes):
    """A statement with its parameters in it; `text` is the one without, or its beginning."""

    text = UNKNOWN

    def __add__(self, more: Any) -> _Bytes:
        longer = _Bytes(super().__add__(more))
        longer.text = self.text
        return longer


def _shown(query: object) -> str:
    text = getattr(query, "text", query)
    return text if isinstance(text, str) else UNKNOWN


class PostgresDriver(postgres_driver.Driver):
    """A connection to PostgreSQL that records each message: its statement, and those before it."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._deferred: list[str] = []

    def defer(self, statement: bytes) -> None:
        """Send a statement along with the next one; their span shows both."""
        super().defer(statement)
        self._deferred.append(_shown(statement) if isinstance(statement, _Bytes) else UNKNOWN)

    def drop_deferred(self) -> None:
        self._deferred.clear()
        super().drop_deferred()

    def rollback(self) -> None:
        """Roll back."""
        self._deferred.clear()
        super().rollback()

    def call(self, statement: ServerStatement) -> str:
        """Return the EXECUTE of a server-side statement; its span shows that statement."""
        call = _Text(super().call(statement))
        call.text = statement.text
        return call

    def span(self, query: object) -> Span:
        """Return the span of the next message."""
        deferred, self._deferred = self._deferred, []
        return tracing.statement(POSTGRESQL, "; ".join([*deferred, _shown(query)]))

    def _send(self, text: bytes) -> None:
        ending = text.rpartition(b" ")[2]
        with self.span(ENDINGS.get(ending, UNKNOWN)):
            super()._send(text)


class PostgresCursor(postgres_driver.Cursor):
    """A cursor of PostgreSQL that records statements."""

    connection: PostgresDriver

    def mogrify(self, query: Query, vars: Parameters = None) -> bytes:
        """Return a statement with its parameters; `defer` gets the one without, too."""
        text = _Bytes(super().mogrify(query, vars))
        text.text = _shown(query)
        return text

    def execute(self, query: Query, vars: Parameters = None) -> None:
        """Run a statement."""
        with self.connection.span(query):
            super().execute(query, vars)

    def executemany(self, query: Query, vars_list: Iterable[Any]) -> None:
        """Run a statement many times, each in a message of its own."""
        with self.connection.span(query):
            super().executemany(query, vars_list)

    def copy_expert(self, sql: Query, file: Any, size: int = 8192) -> None:
        with self.connection.span(sql):
            super().copy_expert(sql, file, size)
