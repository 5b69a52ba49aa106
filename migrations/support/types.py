"""Column types of the tables, and the text form of timestamps on SQLite."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.engine import Dialect

Text = sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")
Id = Text


def iso(moment: datetime) -> str:
    """Format as RFC 3339 in UTC with microseconds: `2026-11-20T12:00:00.123456Z`."""
    naive = moment.astimezone(UTC).replace(tzinfo=None)
    return f"{naive.isoformat(timespec='microseconds')}Z"


class UtcDateTime(sa.types.TypeDecorator[datetime]):
    """A UTC timestamp: timestamptz on PostgreSQL, RFC 3339 text on SQLite."""

    impl = sa.Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> sa.types.TypeEngine[Any]:
        """Return the column type of this database."""
        if dialect.name == "postgresql":
            return dialect.type_descriptor(sa.TIMESTAMP(timezone=True))
        return dialect.type_descriptor(sa.Text())

    def bind_processor(self, dialect: Dialect) -> Callable[[datetime | None], str | None] | None:
        """Return the formatter of parameters; None if the driver formats."""
        if dialect.name != "sqlite":
            return None
        return lambda moment: None if moment is None else iso(moment)

    def result_processor(
        self, dialect: Dialect, coltype: object
    ) -> Callable[[str | None], datetime | None] | None:
        """Return the parser of stored text; None if the driver parses."""
        if dialect.name != "sqlite":
            return None
        return lambda text: None if text is None else datetime.fromisoformat(text)
