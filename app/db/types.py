"""Column types that behave the same on both databases."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import orjson
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.engine import Dialect
from sqlalchemy.engine.default import DefaultExecutionContext

from app import clock

# Text compares and sorts by code point on both databases, whatever the server's locale.
Text = sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")
Id = Text
Formatter = Callable[[datetime | None], str | None]
Processor = Callable[[str | None], datetime | None]


class UtcDateTime(sa.types.TypeDecorator[datetime]):
    """A UTC timestamp: timestamptz on PostgreSQL, RFC 3339 text on SQLite."""

    impl = sa.Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> sa.types.TypeEngine[Any]:
        """Return the column type of this database."""
        if dialect.name == "postgresql":
            return dialect.type_descriptor(sa.TIMESTAMP(timezone=True))
        return dialect.type_descriptor(sa.Text())

    def bind_processor(self, dialect: Dialect) -> Formatter | None:
        """Return the formatter of parameters; None if the driver formats."""
        return clock.iso_or_none if dialect.name == "sqlite" else None

    def process_literal_param(self, value: datetime | None, dialect: Dialect) -> Any:
        return clock.iso_or_none(value) if dialect.name == "sqlite" else value

    def result_processor(self, dialect: Dialect, coltype: object) -> Processor | None:
        """Return the parser of stored text; None if the driver parses."""
        return clock.parse_stored if dialect.name == "sqlite" else None


class RawUtcDateTime(UtcDateTime):
    """A UTC timestamp read without parsing: on SQLite that is the form responses have."""

    cache_ok = True

    def result_processor(self, dialect: Dialect, coltype: object) -> None:
        return


class Json(sa.JSON):
    """JSON that counts a change from 1 to true as a change."""

    def compare_values(self, x: object, y: object) -> bool:
        """Whether two values are the same JSON."""
        return json_equal(x, y)


def json_equal(left: object, right: object) -> bool:
    """Whether two values are the same JSON; Python's == takes 1, true and 1.0 for equal."""
    if left != right:
        return False
    option = orjson.OPT_SORT_KEYS  # a decimal is the same with other zeros, too
    return orjson.dumps(left, str, option) == orjson.dumps(right, str, option)


def created_at_default(context: DefaultExecutionContext) -> datetime:
    """Return a new row's `created_at`, as the default of `updated_at`."""
    created_at: datetime = context.get_current_parameters()["created_at"]  # type: ignore[no-untyped-call]
    return created_at
