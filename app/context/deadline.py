"""The deadline of a request's statements; jobs and commands have none.

PostgreSQL keeps it itself, for each statement (`app/db/postgres_driver.py`); on SQLite a thread of
the process does (`app/db/watch.py`), for each read and for each transaction that writes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple, Protocol


class Client(Protocol):
    """The socket of whoever waits for the answer."""

    def fileno(self) -> int:
        """Return the descriptor, -1 once it is closed."""
        ...


class Limit(NamedTuple):
    """The time that a statement may run, and the request or job that it runs for."""

    seconds: float
    client: Client | None = None


limit: ContextVar[Limit | None] = ContextVar("statement_limit", default=None)
"""The limit of this context's statements."""


@contextmanager
def within(other: Limit | None) -> Iterator[None]:
    """Run the block's statements under another limit; None lets them take as long as they need."""
    token = limit.set(other)
    try:
        yield
    finally:
        limit.reset(token)


def multiplied(factor: float) -> Limit | None:
    """The current limit, so many times as long."""
    current = limit.get()
    return current and current._replace(seconds=current.seconds * factor)
