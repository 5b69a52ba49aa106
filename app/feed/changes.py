"""Reading the stored changes of an account in the order of their numbers (contract section 15).

The number of a change is drawn under a lock that its transaction holds until its commit
(`app/audit/insert.py`): whoever sees a change sees all those with lower numbers.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from app import db
from app.audit import unchanged
from app.audit.entries import CHANGES, HEADS
from app.audit.models import FeedChange
from app.collections import table as tables
from app.db import Base
from app.types import JSONObject

FEED = Base.metadata.tables[FeedChange.__tablename__]
SCANNED = 1000
ROOM = 8 * 2**20  # characters of values, about, in memory at once
SHOWN = ("operation", "table_name", "record_id", "user_id", "occurred_at")
VALUES = ("columns", "old_values", "new_values", "unchanged")


class Bounds(NamedTuple):
    """The changes that the feed of an account has; 0 where there is none."""

    expired: int
    """Changes up to this one may be gone."""
    oldest: int
    newest: int


def newest(account_ids: Collection[str]) -> dict[str, int]:
    """The newest change of each account that has any."""
    found = dict[str, int]()
    for table, number in ((CHANGES, CHANGES.c.first_id), (FEED, FEED.c.change)):
        last = sa.select(sa.func.max(number)).where(table.c.account_id == HEADS.c.account_id)
        query = sa.select(HEADS.c.account_id, last.scalar_subquery())
        for account_id, change in db.connection().execute(
            query.where(HEADS.c.account_id.in_(account_ids))
        ):
            found[account_id] = max(found.get(account_id, 0), change or 0)
    return found


class Scan(NamedTuple):
    """Consecutive changes of wanted tables, and where the next scan goes on."""

    rows: Sequence[sa.Row[Any]]
    next: int
    ended: bool
    """Whether there was nothing more to read."""


def bounds(account_id: str) -> Bounds:
    """The bounds of an account's feed."""
    heads = sa.select(HEADS.c.expired_change).where(HEADS.c.account_id == account_id)
    expired = sa.func.coalesce(heads.scalar_subquery(), 0).label("expired")
    ends = []
    for table, number in ((CHANGES, CHANGES.c.first_id), (FEED, FEED.c.change)):
        mine = sa.select(number).where(table.c.account_id == account_id)
        kept = mine.where(number > heads.scalar_subquery())
        ends += [kept.order_by(number).limit(1), mine.order_by(number.desc()).limit(1)]
    query = sa.select(expired, *(end.scalar_subquery() for end in ends))
    gone, first, last, first_unaudited, last_unaudited = db.connection().execute(query).one()
    oldest = min((n for n in (first, first_unaudited) if n is not None), default=0)
    return Bounds(gone, oldest, max(gone, last or 0, last_unaudited or 0))


def scan(account_id: str, after: int, names: Collection[str], limit: int = SCANNED) -> Scan:
    """The next changes after one, read from at most `limit` changes of any table.

    Of collections with these names, without any of all.
    """
    parameters: JSONObject = {"account": account_id, "after": after, "limit": limit}
    if names:
        parameters["tables"] = [tables.table_name_for(name) for name in names]
    found = db.connection().execute(_SCAN_SOME if names else _SCAN_ALL, parameters).all()
    rows = found[: _fitting(found)]
    ended = not rows or len(rows) == rows[0].scanned < limit
    wanted = [row for row in rows if row.columns is not None]
    return Scan(wanted, rows[-1].change if rows else after, ended)


def _fitting(rows: Sequence[Any]) -> int:
    """How many changes fit into memory with the long values that they lack."""
    size = 0
    for number, row in enumerate(rows):
        size += unchanged.long_size(row.unchanged)
        if size > ROOM and number:
            return number
    return len(rows)


def _stored(
    table: sa.Table, number: sa.ColumnElement[int], erased: object, some: bool
) -> sa.Select[Any]:
    """The first changes after one; those of other tables without values."""
    wanted: sa.BindParameter[str] = sa.bindparam("tables", expanding=True)
    is_record = sa.func.substr(table.c.table_name, 1, len(tables.PREFIX)) == tables.PREFIX
    is_wanted = table.c.table_name.in_(wanted) if some else is_record
    values = (sa.case((is_wanted, table.c[name])).label(name) for name in VALUES)
    mine = (table.c.account_id == sa.bindparam("account"), number > sa.bindparam("after"))
    shown = (table.c[name] for name in SHOWN)
    query = sa.select(number.label("change"), *shown, *values, sa.type_coerce(erased, sa.Boolean))
    return query.where(*mine).order_by(number).limit(sa.bindparam("limit"))


def _scan(some: bool) -> sa.Select[Any]:
    erased = (CHANGES.c.salts.is_(None).label("erased"), (FEED.c.columns == "[]").label("erased"))
    audited = _stored(CHANGES, CHANGES.c.first_id, erased[0], some)
    unaudited = _stored(FEED, FEED.c.change, erased[1], some)
    both = sa.union_all(*(sa.select(one.subquery()) for one in (audited, unaudited))).subquery()
    first = sa.select(both).order_by(both.c.change).limit(sa.bindparam("limit")).subquery()
    measured = sa.select(first, *_over(first)).subquery()
    fits = sa.or_(measured.c.size <= ROOM, measured.c.number == 1)
    return sa.select(measured).where(fits).order_by(measured.c.change)


def _over(first: sa.Subquery) -> list[sa.ColumnElement[Any]]:
    lengths = [sa.func.coalesce(sa.func.length(first.c[name]), 0) for name in VALUES]
    size = sa.func.sum(sum(lengths[1:], lengths[0])).over(order_by=first.c.change)
    number = sa.func.row_number().over(order_by=first.c.change)
    scanned = sa.func.count().over()
    return [size.label("size"), number.label("number"), scanned.label("scanned")]


_SCAN_SOME, _SCAN_ALL = _scan(True), _scan(False)


def next_changes(
    account_id: str, table_name: str, column: str, record_ids: Sequence[str], after: int
) -> dict[str, Any]:
    """The first change of a column after a change, by record."""
    found = []
    for table, number in ((CHANGES, CHANGES.c.first_id), (FEED, FEED.c.change)):
        mine = (table.c.account_id == account_id, table.c.table_name.concat("") == table_name)
        named = table.c.columns.contains(f'"{column}"', autoescape=True)
        later = (table.c.record_id.in_(record_ids), number > after, named)
        shown = (table.c[name] for name in ("record_id", "columns", "old_values"))
        found.append(sa.select(number.label("change"), *shown).where(*mine, *later))
    both = sa.union_all(*found).subquery()
    place = sa.func.row_number().over(partition_by=both.c.record_id, order_by=both.c.change)
    placed = sa.select(both, place.label("place")).subquery()
    rows = db.connection().execute(sa.select(placed).where(placed.c.place == 1))
    return {row.record_id: row for row in rows}
