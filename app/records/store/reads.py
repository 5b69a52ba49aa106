"""Reads records, mostly in statements that also carry version checks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import sqlalchemy as sa

from app import db
from app.collections import totals
from app.collections.definitions import Definition
from app.context import tenancy
from app.db.prepared import PreparedStatement
from app.db.versioned_cache import VersionChecks, version_columns
from app.records import store
from app.records.store import ACCOUNT, NO_PARAMETERS, Condition, Row, sizes
from app.records.store.sizes import SizeLimit
from app.types import JSONMapping

UniqueKey = tuple[str, ...]
"""The fields of a unique index."""


class Part(NamedTuple):
    """A range of a list: its conditions, and its order."""

    where: Sequence[Condition]
    order_by: Sequence[Any]


def read_one(
    definition: Definition,
    account_id: str | None,
    record_id: str,
    version_checks: VersionChecks,
    where: Condition | None = None,
    parameters: JSONMapping = NO_PARAMETERS,
    *,
    to_show: bool = False,
) -> Row | None:
    """Read one record with version checks. Raises Stale.

    `to_show` leaves timestamps in their stored form.
    """
    version_checks = version_checks.within(account_id)
    key = (definition, to_show, account_id is None, where, version_checks.tables)
    bound_values = {"_account": account_id, "_id": record_id, **parameters}
    return one_row(
        definition, definition.memo.get(_prepared_select, *key), bound_values, version_checks
    )


def one_row(
    definition: Definition,
    statement: PreparedStatement,
    parameters: JSONMapping,
    version_checks: VersionChecks,
) -> Row | None:
    """Execute a statement for one row, followed by version columns. Raises Stale."""
    rows = statement.all({**parameters, **version_checks.parameters})
    if not rows:
        return None
    columns, row = definition.columns, rows[0]
    version_checks.check(row[len(columns) :])
    return dict(zip(columns, row, strict=False))


def _prepared_select(
    definition: Definition,
    to_show: bool,
    anywhere: bool,
    where: Condition | None,
    tables: tuple[str, ...],
) -> PreparedStatement:
    # Rules may compare parameters with anything, so the plan may not be reused.
    keyed = where is None
    return PreparedStatement(
        select_by_id(definition, to_show, anywhere, where, tables), keyed=keyed
    )


def select_by_id(
    definition: Definition,
    to_show: bool,
    anywhere: bool,
    where: Condition | None,
    tables: tuple[str, ...],
) -> sa.Select[Any]:
    """Select a row by id, followed by version columns."""
    columns = definition.listed if to_show else definition.selected
    scoped = store.scope(definition, None if anywhere else ACCOUNT, where)
    by_id = (*scoped, definition.table.c.id == sa.bindparam("_id"))
    versions = version_columns(tables)
    if where is None:
        return sa.select(*columns, *versions).where(*by_id)
    # Citus refuses subqueries as columns beside a rule that follows references.
    current = sa.select(*versions).subquery()
    source = definition.table.join(current, sa.true())
    return sa.select(*columns, *current.c).select_from(source).where(*by_id)


def read_page(
    definition: Definition,
    account_id: str | None,
    where: Condition | None,
    conditions: Sequence[object],
    parts: Callable[[], Sequence[Part]],
    skip: int,
    limit: int,
    count: bool,
    version_checks: VersionChecks,
    parameters: JSONMapping = NO_PARAMETERS,
    max_total: int | None = None,
    *,
    columns: frozenset[str],
    room: SizeLimit,
    cacheable: bool = False,
    cut: int | None = None,
) -> tuple[list[Row], int | None]:
    """Read a page and the total with version checks. Raises Stale, AnswerTooLarge.

    The total stops at `max_total` + 1. `cacheable` statements recur with the same conditions and
    parts. Long values of other fields than `columns` are not read; `cut` truncates them.
    """
    version_checks = version_checks.within(account_id)
    tables, anywhere = version_checks.tables, account_id is None
    options = (count, max_total, tables, columns, cut)
    arguments = (definition, anywhere, where, tuple(conditions), parts, *options)
    statement = (
        definition.memo.get(_prepared_page, *arguments)
        if cacheable
        else _page_statement(*arguments)
    )
    paging = {"_account": account_id, "_skip": skip, "_limit": limit, "_most": skip + limit}
    bound_values = {**paging, **parameters, **version_checks.parameters}
    conditions_in_scope = [
        *store.scope(definition, None if anywhere else ACCOUNT, where),
        *conditions,
    ]
    reader = _Reading(
        definition,
        definition.listed,
        conditions_in_scope,
        bound_values,
        columns,
        room,
        is_filtered=where is not None or bool(conditions),
    )
    rows, (total,) = reader.found(statement, version_checks, limit, 1)
    if count and total is None:  # unknown to `totals`
        total = _count(definition, account_id) if rows or skip else 0
    return rows, total


def _count(definition: Definition, account_id: str | None) -> int:
    count = sa.select(sa.func.count()).select_from(definition.table)
    return db.connection().scalar(count.where(*store.scope(definition, account_id))) or 0


def _prepared_page(*arguments: Any) -> PreparedStatement:
    return PreparedStatement(_page_statement(*arguments))


def _page_statement(
    definition: Definition,
    anywhere: bool,
    where_access: Any,
    conditions: tuple[Any, ...],
    parts: Callable[[], Sequence[Part]],
    count: bool,
    max_total: int | None,
    tables: tuple[str, ...],
    columns_wanted: frozenset[str],
    cut: int | None,
) -> sa.Select[Any]:
    where = [*store.scope(definition, None if anywhere else ACCOUNT, where_access), *conditions]
    total: Any = sa.null()
    counts_all = where_access is None and not conditions and max_total is None
    if count and counts_all:
        total = totals.total(definition.id, None if anywhere else ACCOUNT)
    elif count:
        counted_from: Any = definition.table
        counted_where: Sequence[Any] = where
        if max_total is not None:
            limited = sa.select(sa.literal(1).label("one")).select_from(counted_from).where(*where)
            counted_from, counted_where = limited.limit(max_total + 1).subquery(), ()
        total = sa.select(sa.func.count()).select_from(counted_from).where(*counted_where)
        total = total.scalar_subquery()
    skip, limit, max_rows = (
        sa.bindparam(n, type_=sa.Integer) for n in ("_skip", "_limit", "_most")
    )
    page = (
        _page(definition, where, parts(), max_rows, columns_wanted, cut).offset(skip).limit(limit)
    )
    return _with_facts(page, [total.label("total"), *version_columns(tables)])


def read_parts(
    definition: Definition,
    where: Sequence[Condition],
    parts: Sequence[Part],
    limit: int,
    version_checks: VersionChecks,
    parameters: JSONMapping = NO_PARAMETERS,
    *,
    columns: frozenset[str],
    room: SizeLimit,
) -> list[Row]:
    """Read the first rows of a list, and one more if there is, with version checks.

    The extra row may lack its long values. Long values of other fields than `wanted` are not read.
    Raises Stale, AnswerTooLarge.
    """
    page = _page(definition, where, parts, limit + 1, columns).limit(limit + 1)
    reader = _Reading(definition, definition.listed, where, parameters, columns, room)
    return reader.rows(page, version_checks, limit)


def _page(
    definition: Definition,
    where: Sequence[Condition],
    parts: Sequence[Part],
    max_rows: Any,
    wanted: frozenset[str],
    cut: int | None = None,
) -> sa.Select[Any]:
    """Select the consecutive parts of a list, at most `max_rows` of each."""
    rows = sa.select(*sizes.measured(definition, definition.listed, wanted, cut))
    queries = [rows.where(*where, *part_where).order_by(*order) for part_where, order in parts]
    if len(queries) == 1:
        return queries[0]
    # Both databases read the parts of UNION ALL in order, up to the limit.
    limited = (sa.select(query.limit(max_rows).subquery()) for query in queries)
    return sa.select(sa.union_all(*limited).subquery())


def read_by_ids(
    definition: Definition,
    scoped: Sequence[Any],
    record_ids: Sequence[str],
    version_checks: VersionChecks,
    parameters: JSONMapping = NO_PARAMETERS,
    *,
    wanted_names: frozenset[str],
    room: SizeLimit,
) -> list[Row]:
    """Read records by id within a scope, with version checks even if none match.

    Raises Stale, AnswerTooLarge.
    """
    conditions = (*scoped, store.is_any_of(definition.table.c.id, record_ids))
    columns = sizes.measured(definition, definition.selected, wanted_names)
    reader = _Reading(definition, definition.selected, scoped, parameters, wanted_names, room)
    return reader.rows(sa.select(*columns).where(*conditions), version_checks, len(record_ids))


def _with_facts(query: sa.Select[Any], facts: Sequence[object]) -> sa.Select[Any]:
    """Add columns to a query that are returned even without rows."""
    single_row, page = sa.select(sa.literal(1).label("one")).subquery(), query.subquery()
    return sa.select(*page.c, *facts).select_from(single_row.outerjoin(page, sa.true()))


@dataclass(frozen=True)
class _Reading:
    """Reads rows, and those with values that were too long in a second statement."""

    definition: Definition
    columns: Sequence[Any]
    within: Sequence[Any]
    """The conditions of the rows."""
    parameters: JSONMapping
    wanted: frozenset[str]
    room: SizeLimit
    is_filtered: bool = True
    """Whether an index may have to serve conditions, and not only the order."""

    def rows(self, query: sa.Select[Any], version_checks: VersionChecks, limit: int) -> list[Row]:
        """Execute a query with version checks, which work even without rows."""
        return self.found(_with_facts(query, version_checks.columns), version_checks, limit, 0)[0]

    def found(
        self,
        statement: sa.Select[Any] | PreparedStatement,
        version_checks: VersionChecks,
        limit: int,
        facts: int,
    ) -> tuple[list[Row], Sequence[Any]]:
        """The rows of a `_with_facts` statement, and its facts without versions. Raises Stale."""
        max_bytes = sizes.room_for(limit * len(sizes.long_names(self.definition, self.wanted)))
        bound_values = {**self.parameters, **version_checks.parameters, "_room": max_bytes}
        with tenancy.through_views() if self.is_filtered else nullcontext():
            if isinstance(statement, PreparedStatement):
                rows: Sequence[Any] = statement.all(bound_values)
            else:
                rows = db.connection().execute(statement, bound_values).all()
        width = len(self.definition.columns)
        facts_end = width + 1 + facts
        version_checks.check(rows[0][facts_end:])
        id = list(self.definition.columns).index("id")
        present_rows = [row for row in rows if row[id] is not None]
        result = store.rows(self.definition, [row[:width] for row in present_rows])
        lengths = [row[width] for row in present_rows[:limit]]
        complete = self._whole(result[:limit], lengths, max_bytes)
        return [*complete, *result[limit:]], rows[0][width + 1 : facts_end]

    def _whole(self, rows: list[Row], lengths: Sequence[int], max_bytes: int) -> list[Row]:
        self.room.take(sum(lengths))
        incomplete_ids = [
            row["id"] for row, size in zip(rows, lengths, strict=True) if size > max_bytes
        ]
        if not incomplete_ids:
            return rows
        conditions = (*self.within, store.is_any_of(self.definition.table.c.id, incomplete_ids))
        result = db.connection().execute(
            sa.select(*self.columns).where(*conditions), self.parameters
        )
        complete = {_key(row): row for row in store.rows(self.definition, result)}
        # Skip rows that were deleted meanwhile.
        rows_with_size = zip(rows, lengths, strict=True)
        complete_rows = [
            row if size <= max_bytes else complete.get(_key(row)) for row, size in rows_with_size
        ]
        return [row for row in complete_rows if row is not None]


def _key(row: Row) -> tuple[str, str]:
    return row["account_id"], row["id"]


def check_room(definition: Definition, where: Sequence[Condition]) -> None:
    """Check the total size of records. Raises AnswerTooLarge."""
    names = sizes.long_names(definition, definition.columns)
    if names:
        octets = [sa.func.coalesce(sizes.Octets(definition.expressions[n]), 0) for n in names]
        total = sa.select(sa.func.sum(sum(octets[1:], octets[0]))).where(*where)
        SizeLimit().take(int(db.connection().execute(total).scalar() or 0))


def existing_ids(
    definition: Definition,
    scoped: Sequence[Any],
    record_ids: Iterable[str],
    parameters: JSONMapping = NO_PARAMETERS,
) -> set[str]:
    """The ids that exist within a scope."""
    table = definition.table
    statement = sa.select(table.c.id).where(*scoped, table.c.id.in_(list(record_ids)))
    return set(db.connection().execute(statement, parameters).scalars())


def find_conflicts(definition: Definition, rows: Sequence[Row]) -> dict[int, list[UniqueKey]]:
    """The unique keys with duplicate values, by index, stored or earlier in `rows`."""
    result: dict[int, list[UniqueKey]] = {}
    for names in definition.unique_keys:
        places: dict[object, int] = {}
        keys = {n: key for n, row in enumerate(rows) if (key := unique_value(row, names))}
        owners = _owners(definition, names, list(keys.values())) if keys else {}
        for place, key in keys.items():
            is_duplicate = places.setdefault(key, place) != place
            if is_duplicate or owners.get(key, rows[place]["id"]) != rows[place]["id"]:
                result.setdefault(place, []).append(names)
    return dict(sorted(result.items()))


def unique_value(row: Row, names: UniqueKey) -> tuple[object, ...] | None:
    """The account and the values of a unique key; None if one is null, which never clashes."""
    values = [row[name] for name in names]
    return None if None in values else (row["account_id"], *values)


def _owners(
    definition: Definition, names: UniqueKey, keys: Sequence[tuple[object, ...]]
) -> dict[tuple[object, ...], str]:
    """The ids of the stored records with these values."""
    table = definition.table
    columns, accounts = [table.c[name] for name in names], {key[0] for key in keys}
    values: Any = columns[0] if len(columns) == 1 else sa.tuple_(*columns)
    wanted = [key[1] if len(columns) == 1 else key[1:] for key in keys]
    query = sa.select(table.c.id, table.c.account_id, *columns)
    found = query.where(table.c.account_id.in_(accounts), values.in_(wanted))
    with tenancy.through_views():
        rows = db.connection().execute(found).all()
    return {tuple(row[1:]): row[0] for row in rows}
