"""A connection outside of every transaction, as the owner of the tables; on PostgreSQL only.

The pool's connections send the tenant scope along with a statement. PostgreSQL accepts CREATE INDEX
CONCURRENTLY and its like only alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from app.db import engine, postgres_session

LOCK_MILLISECONDS = 30_000


@contextmanager
def connect(url: sa.URL | None = None) -> Iterator[sa.Connection]:
    """A connection of its own, in autocommit, that waits LOCK_MILLISECONDS at most for a lock.

    By default to the primary.
    """
    own_engine = sa.create_engine(
        url or engine.primary().url,
        isolation_level="AUTOCOMMIT",
        hide_parameters=True,
        poolclass=NullPool,
        connect_args={
            "connect_timeout": 5,
            "application_name": "atrium",
            **engine.KEEPALIVE,
        },
    )
    postgres_session.start_each(own_engine, {"lock_timeout": str(LOCK_MILLISECONDS)})
    with own_engine.connect() as connection:
        yield connection


def pooler_refusal() -> str | None:
    """Return why the database's pooler is refused; None if it is not, or if nothing answers."""
    if engine.has_one_writer():
        return None
    try:
        with connect():
            return None
    except SQLAlchemyError as error:
        return postgres_session.refusal(error)
