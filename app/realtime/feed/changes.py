"""Reading the stored changes of an account in the order of their numbers.

The number of a change is drawn under a lock that is held until the number is stored
(`app/audit/sealing.py`): whoever sees a change sees all those with lower numbers.

Numbers have generations: a new one begins when the database went back in time. After a restore, a
recovery to a point in time or a failover that lost commits, the numbers that readers have seen
would be given again, to other changes. A generation begins above all numbers that were ever given,
and the feed has nothing of the time before it: every reader reads anew, as a list that was read
just before may show what is no longer so (docs/realtime.md#what-you-can-rely-on).

Changes that are not audited are deleted hourly once they are expired; audited ones stay with their
entries.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import timedelta
from functools import lru_cache
from typing import Any, NamedTuple

import sqlalchemy as sa

from app import clock, config, db, jobs
from app.audit import sealing, unchanged
from app.audit.chain import digest
from app.audit.entries import CHANGES, HEADS
from app.audit.models import AuditChange, AuditHead, FeedChange, FeedGeneration
from app.auth.principal import Principal
from app.collections import table as tables
from app.collections.definitions import Definition
from app.context import tenancy
from app.db import Base
from app.db.prepared import PreparedStatement
from app.realtime.feed import marks
from app.types import JSONMapping, JSONObject

FEED = Base.metadata.tables[FeedChange.__tablename__]
NUMBERED = ((CHANGES, CHANGES.c.first_id), (FEED, FEED.c.change))
SCANNED = 1000
ROOM = 8 * 2**20  # characters of values, about, in memory at once
UNKNOWN_SIZE = 2**16  # of a change by a process of the version before
SHOWN = ("operation", "table_name", "record_id", "user_id", "occurred_at", *digest.NAMING)
VALUES = ("columns", "old_values", "new_values", "unchanged")
NEWEST_GENERATION = sa.select(sa.func.max(FeedGeneration.first_change))
_NUMBERS = (
    *(AuditChange.last_id, FeedChange.change),
    *(AuditHead.expired_change, FeedGeneration.first_change),
)
# A server's timeline changes as it is promoted, or recovered to a point in time. None on a replica,
# whose readers look at what the primary decided.
_TIMELINE = sa.literal_column(
    "CASE WHEN pg_is_in_recovery() THEN NULL ELSE"
    " ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::bigint END",
    sa.BigInteger,
)


class Bounds(NamedTuple):
    """The changes that the feed of an account has; 0 where there is none."""

    expired: int
    """Changes up to this one may be gone."""
    oldest: int
    newest: int


class Newest(NamedTuple):
    """The newest change of an account."""

    change: int
    """One more where some are not sealed."""
    is_unmarked: bool
    """Whether a mark of changed rights has no place yet."""


def newest(account_ids: Collection[str]) -> dict[str, Newest]:
    """The newest change of each account that has any."""
    last = [
        sa.select(sa.func.max(number)).where(table.c.account_id == HEADS.c.account_id)
        for table, number in NUMBERED
    ]
    unsealed = sa.exists().where(sealing.PENDING.c.account_id == HEADS.c.account_id)
    late = (unsealed, marks.is_behind(HEADS.c.rights_number))
    query = sa.select(HEADS.c.account_id, *(one.scalar_subquery() for one in last), *late)
    rows = db.connection().execute(query.where(HEADS.c.account_id.in_(account_ids)))
    return {row[0]: Newest(max(row[1] or 0, row[2] or 0) + bool(row[3]), row[4]) for row in rows}


class Scan(NamedTuple):
    """Consecutive changes of wanted tables, and where the next scan goes on."""

    rows: Sequence[sa.Row[Any]]
    next: int
    ended: bool
    """Whether there was nothing more to read."""


def newest_change(*, by: Principal) -> int:
    """The number of the newest change in the caller's account; 0 if there is none."""
    account_id = by.require_account_id()
    with tenancy.in_account(account_id):
        return bounds(account_id).newest


def bounds(account_id: str) -> Bounds:
    """The bounds of an account's feed, with what is committed by now."""
    query, mine = _bounds(db.has_one_writer()), {"account": account_id}
    *row, is_late, is_behind = db.connection().execute(query, mine).one()
    if is_late:
        sealing.settle(account_id)
    if is_behind:
        marks.settle(account_id)
    if is_late or is_behind:
        row = list(db.connection().execute(query, mine).one()[:-2])
    expired, begun, first, last, first_unaudited, last_unaudited, *lines = row
    if is_generation_ended(*lines):
        begun = start_generation()
        first = first_unaudited = None
    gone = max(expired or 0, begun or 0)
    oldest = min((n for n in (first, first_unaudited) if n is not None), default=0)
    return Bounds(gone, oldest, max(gone, last or 0, last_unaudited or 0))


@lru_cache
def _bounds(has_one_writer: bool) -> sa.Select[Any]:
    account: sa.BindParameter[str] = sa.bindparam("account")
    heads = sa.select(HEADS.c.expired_change).where(HEADS.c.account_id == account)
    ends = [heads, NEWEST_GENERATION]
    for table, number in NUMBERED:
        mine = sa.select(number).where(table.c.account_id == account)
        left = mine.where(
            number > sa.func.coalesce(heads.scalar_subquery(), 0),
            number > sa.func.coalesce(NEWEST_GENERATION.scalar_subquery(), 0),
        )
        ends += [left.order_by(number).limit(1), mine.order_by(number.desc()).limit(1)]
    query = sa.select(*(end.scalar_subquery() for end in ends), *timelines())
    unsealed = sa.exists().where(sealing.PENDING.c.account_id == account)
    seen = sa.select(HEADS.c.rights_number).where(HEADS.c.account_id == account)
    return query.add_columns(unsealed, marks.is_behind(seen.scalar_subquery()))


def scan(account_id: str, after: int, wanted: Collection[str], limit: int = SCANNED) -> Scan:
    """The next changes after one, read from at most `limit` changes of any table.

    Of these tables, without any of all collections, and the marks (`marks.read`). A table's name
    may have been another collection's before: `states.transitions` leaves its changes out.
    """
    parameters: JSONObject = {"account": account_id, "after": after, "limit": limit}
    found = db.connection().execute(_SIZES, parameters).all()
    last, size, is_whole = after, 0, True
    for row in found:
        is_wanted = row.table_name in (*wanted, *marks.TABLES) or (
            not wanted and row.table_name.startswith(tables.PREFIX)
        )
        size += row.size if is_wanted else 0
        if size > ROOM and last > after:
            is_whole = False
            break
        last = row.change
    rows = db.connection().execute(_VALUES, {**parameters, "last": last}).all() if size else []
    rows = [row for row in rows if not wanted or row.table_name in (*wanted, *marks.TABLES)]
    fitting = _fitting(rows)
    if fitting < len(rows):
        return Scan(rows[:fitting], rows[fitting - 1].change, False)
    return Scan(rows, last, is_whole and len(found) < limit)


def _fitting(rows: Sequence[Any]) -> int:
    """The number of changes that fit into memory with the long values that they lack."""
    size = 0
    for number, row in enumerate(rows):
        size += unchanged.long_size(row.unchanged)
        if size > ROOM and number:
            return number
    return len(rows)


def _sizes(table: sa.Table, number: sa.ColumnElement[int]) -> sa.Select[Any]:
    size = sa.func.coalesce(table.c.size, UNKNOWN_SIZE).label("size")
    query = sa.select(number.label("change"), table.c.table_name, size)
    return query.where(*_after(table, number)).order_by(number).limit(sa.bindparam("limit"))


def _values(
    table: sa.Table, number: sa.ColumnElement[int], erased: sa.ColumnElement[bool], *where: Any
) -> sa.Select[Any]:
    columns = (table.c[name] for name in (*SHOWN, *VALUES))
    query = sa.select(number.label("change"), *columns, erased.label("erased"))
    is_record = sa.func.substr(table.c.table_name, 1, len(tables.PREFIX)) == tables.PREFIX
    is_shown = sa.or_(is_record, table.c.table_name.in_(marks.TABLES))
    return query.where(*_after(table, number), number <= sa.bindparam("last"), is_shown, *where)


def _after(table: sa.Table, number: sa.ColumnElement[int]) -> Sequence[sa.ColumnElement[bool]]:
    return (table.c.account_id == sa.bindparam("account"), number > sa.bindparam("after"))


def _both(*queries: sa.Select[Any]) -> sa.Select[Any]:
    both = sa.union_all(*(sa.select(query.subquery()) for query in queries)).subquery()
    return sa.select(both).order_by(both.c.change).limit(sa.bindparam("limit"))


def later(
    account_id: str, after: int, names: Collection[str], most: int
) -> Sequence[sa.Row[Any]] | None:
    """All changes of these tables after one, with what is committed by now.

    None if there are more than `most`, or more than there is memory for.
    """
    sealing.settle(account_id)
    parameters: JSONObject = {"account": account_id, "after": after, "limit": most + 1}
    parameters |= {f"table_{n}": name for n, name in enumerate(sorted(names))}
    sizes, values = _later(len(names))
    found = sizes.all(parameters)
    if len(found) > most or sum(size for _, _, size in found) > ROOM:
        return None
    if not found:
        return ()
    parameters["last"], *_ = found[-1]
    rows = db.connection().execute(values, parameters).all()
    return rows if _fitting(rows) == len(rows) else None


@lru_cache
def _later(count: int) -> tuple[PreparedStatement, sa.Select[Any]]:
    """The sizes and the values of changes of so many tables, each found by the index.

    Of each reader whom a membership concerns, the sizes are asked for, and mostly there are none.
    """
    names: list[sa.BindParameter[str]] = [sa.bindparam(f"table_{n}") for n in range(count)]
    sizes = [
        _sizes(table, number).where(table.c.table_name == name)
        for name in names
        for table, number in NUMBERED
    ]
    values = [
        query.where(table.c.table_name == name)
        for name in names
        for query, (table, _) in zip(_STORED, NUMBERED, strict=True)
    ]
    return PreparedStatement(_both(*sizes)), _both(*values)


_SIZES = _both(*(_sizes(*one) for one in NUMBERED))
# Changes of many records at once name no record: their metadata begin with the collection, as keys
# are sorted (`app/audit/records.py`). Those of a record's change tell of its signature and portal.
OF_MANY = '{"collection":'
_STORED = (
    _values(
        *(CHANGES, CHANGES.c.first_id, CHANGES.c.salts.is_(None)),
        sa.func.substr(sa.func.coalesce(CHANGES.c.extra_metadata, ""), 1, len(OF_MANY)) != OF_MANY,
    ),
    _values(FEED, FEED.c.change, FEED.c.columns == "[]"),  # marks are there
)
_VALUES = _both(*_STORED)


def next_changes(
    account_id: str, definition: Definition, column: str, record_ids: Sequence[str], after: int
) -> dict[str, Any]:
    """The first change of a column after a change, by record."""
    found = []
    for table, number in NUMBERED:
        mine = table.c.account_id == account_id
        named = _names_column(table, definition, column)
        later = (table.c.record_id.in_(record_ids), number > after, named)
        shown = (table.c[name] for name in ("record_id", "occurred_at", "columns", "old_values"))
        found.append(sa.select(number.label("change"), *shown).where(mine, *later))
    both = sa.union_all(*found).subquery()
    place = sa.func.row_number().over(partition_by=both.c.record_id, order_by=both.c.change)
    placed = sa.select(both, place.label("place")).subquery()
    rows = db.connection().execute(sa.select(placed).where(placed.c.place == 1))
    return {row.record_id: row for row in rows}


def _names_column(table: sa.Table, definition: Definition, column: str) -> sa.ColumnElement[bool]:
    """Whether a change names a column, by the name that it had then."""
    conditions = []
    for era in definition.eras:
        if (name := era.former_name(column)) is not None:
            table_name = tables.table_name_for(era.collection)
            of_table = table.c.table_name.concat("") == table_name  # no index of it
            named = table.c.columns.contains(f'"{name}"', autoescape=True)
            until = () if era.until is None else (table.c.occurred_at < era.until,)
            since = (table.c.occurred_at >= era.since,) if era.since > definition.created_at else ()
            conditions.append(sa.and_(of_table, named, *since, *until))
    return sa.or_(*conditions)


def first_number() -> int:
    """The microseconds since 1970: more than the number of any change, as no instance makes a
    million changes a second for years. JavaScript's numbers hold it until 2255.
    """
    return int(clock.now().timestamp() * 1_000_000)


def next_number() -> int:
    """A number above those of all changes so far, also if the clock was set back."""
    newest = sa.select(*(sa.select(sa.func.max(one)).scalar_subquery() for one in _NUMBERS))
    numbers = db.connection().execute(newest).one()
    return max(first_number(), *((number or 0) + 1 for number in numbers))


def present_generation() -> int:
    """The first number of the present generation; begins one if the server's timeline changed."""
    begun, *lines = (
        db.connection().execute(sa.select(NEWEST_GENERATION.scalar_subquery(), *timelines())).one()
    )
    return start_generation() if is_generation_ended(*lines) else begun or 0


def timelines() -> tuple[sa.ColumnElement[Any], sa.ColumnElement[Any]]:
    """Columns with the timeline of the present generation, and that of the server."""
    if db.has_one_writer():
        return sa.null(), sa.null()
    newest = FeedGeneration.first_change.desc()
    return sa.select(FeedGeneration.timeline).order_by(newest).limit(1).scalar_subquery(), _TIMELINE


def is_generation_ended(known: int | None, present: int | None) -> bool:
    """Whether the server left the timeline on which the present generation began."""
    return known is not None and present is not None and known != present


def start_generation(*, always: bool = False) -> int:
    """Begin a generation, unless another process just did so; returns its first number.

    `always` begins one although the server's timeline is that of the present one.
    """
    with tenancy.as_owner(), db.transaction() as session:
        if not db.has_one_writer():
            # A writer that has drawn its number ends first: whoever reads anew sees its change.
            session.execute(sa.text("LOCK TABLE audit_heads IN EXCLUSIVE MODE"))
        begun = session.scalar(NEWEST_GENERATION) or 0
        known, present = session.execute(sa.select(*timelines())).one()
        if not always and not is_generation_ended(known, present):
            return begun
        first = next_number()
        session.add(FeedGeneration(first_change=first, timeline=present))
        move_sequence(first)
        return first


def move_sequence(first: int) -> None:
    """Let PostgreSQL draw numbers above this one; on SQLite they follow from what is stored."""
    if not db.has_one_writer():
        drawn = sa.func.nextval("audit_log_ids")
        moved = sa.func.setval("audit_log_ids", sa.func.greatest(first, drawn))
        db.connection().execute(sa.select(moved))


@jobs.periodic(3600, "feed.purge")
def purge(payload: JSONMapping) -> None:
    """Delete changes older than the retention period, and note up to which they are gone."""
    expired = FEED.c.occurred_at <= clock.now() - timedelta(
        days=config.current().feed_retention_days
    )
    is_mark = FEED.c.table_name.in_(marks.TABLES)
    last = sa.select(FEED.c.account_id, sa.func.max(FEED.c.change)).where(expired, ~is_mark)
    for account_id, change in db.connection().execute(last.group_by(FEED.c.account_id)).all():
        with tenancy.in_account(account_id), db.transaction() as session:
            is_behind = (HEADS.c.account_id == account_id, HEADS.c.expired_change < change)
            session.execute(sa.update(HEADS).where(*is_behind).values(expired_change=change))
    # Marks stay as long as audited changes around them: without one, a reader would miss it.
    gone = sa.select(HEADS.c.expired_change).where(HEADS.c.account_id == FEED.c.account_id)
    db.purge(FEED, expired & (~is_mark | (FEED.c.change <= gone.scalar_subquery())))
