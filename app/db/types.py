"""The types of columns, the same on both databases."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import orjson
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.engine import Dialect

from app import clock

# Text compares and sorts by code point on both databases, whatever the server's locale.
Text = sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")
Id = Text


class Moment(sa.types.TypeDecorator[datetime]):
    """An instant: timestamptz on PostgreSQL, the contract's text form on SQLite."""

    impl = sa.Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> sa.types.TypeEngine[Any]:
        """The column type on this database."""
        if dialect.name == "postgresql":
            return dialect.type_descriptor(sa.TIMESTAMP(timezone=True))
        return dialect.type_descriptor(sa.Text())

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> Any:
        """A moment on its way in."""
        return clock.iso(value) if value and dialect.name == "sqlite" else value

    def result_processor(self, dialect: Dialect, coltype: object) -> Any:
        """What makes a moment of a stored value; None where the driver does."""
        return _moment if dialect.name == "sqlite" else None


class StoredMoment(Moment):
    """A moment that is read as the database keeps it, on SQLite in the form that answers have."""

    cache_ok = True

    def result_processor(self, dialect: Dialect, coltype: object) -> Any:
        """None: nothing is made of it."""
        return None


class Json(sa.JSON):
    """JSON in which a change from 1 to true is one, and is stored."""

    def compare_values(self, x: Any, y: Any) -> bool:
        """Whether nothing has changed."""
        return same_json(x, y)


def same_json(left: Any, right: Any) -> bool:
    """Whether two values are the same JSON: to Python 1 equals true, and 1.0."""
    if left != right:
        return False
    one, other = (orjson.dumps(value, option=orjson.OPT_SORT_KEYS) for value in (left, right))
    return one == other


def _moment(text: str | None) -> datetime | None:
    return clock.parse(text) if text is not None else None


def as_created(context: Any) -> datetime:
    """The default of `updated_at`: what a new row's `created_at` says, to the microsecond."""
    moment: datetime = context.get_current_parameters()["created_at"]
    return moment
