"""Reads records, mostly in statements that also carry version checks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, NamedTuple, Protocol

import sqlalchemy as sa

from app import db
from app.collections import totals
from app.collections.access import Access
from app.collections.definitions import Definition
from app.collections.models import RecordLink
from app.context import tenancy
from app.db import filters
from app.db.prepared import PreparedStatement
from app.db.versioned_cache import VersionCheck, VersionChecks, combine, version_columns
from app.records import store
from app.records.store import ACCOUNT, NO_PARAMETERS, Condition, Row, SizeLimit
from app.types import JSONMapping, cached_property

LINKS: Any = RecordLink.__table__
MOST: Any = sa.bindparam("_most", type_=sa.Integer)
"""How many rows of each part may be needed."""
TARGET, PLACE = ".target", ".place"
"""What rows have besides fields, which have no such names."""
UniqueKey = tuple[str, ...]
"""The fields of a unique index."""
Parameters = Mapping[str, Sequence[str]]


@dataclass(frozen=True, kw_only=True)
class ListQuery:
    """A page of a list: which records, how many, and what of them."""

    parameters: Parameters
    """`filter`, `sort`, `fields`, `expand`, a cursor, and values by field, as they were sent."""
    skip: int = 0
    limit: int
    count: bool = False
    """Whether the total is wanted."""
    max_total: int | None = None
    """Stops counting at one more; None counts all."""
    since: datetime | None = None
    """Leaves out records that were created before."""
    cut: int | None = None
    """Truncates long values to so many characters."""
    file_links: int | None = None
    """The seconds for which addresses of files work without a credential; None: they need one."""


class Part(NamedTuple):
    """A range of a list: its conditions, and its order."""

    where: Sequence[Condition]
    order_by: Sequence[Any]
    gate: Condition | None = None
    """Whether it is read at all, which other records decide."""


class Searched(Protocol):
    """A search, as statements need it."""

    @property
    def total(self) -> sa.ColumnElement[int | None]:
        """How many records were found; null if they were not counted to the end."""
        ...

    def found(self, where: Sequence[Any]) -> sa.CTE:
        """The table that its conditions read."""
        ...


@dataclass(frozen=True)
class Selection:
    """The records that a read is about, and what it reads of them.

    They are those of the caller's account that its access and the conditions let through. Across
    all accounts, the caller has none.
    """

    access: Access
    conditions: tuple[Any, ...] = ()
    bound: JSONMapping = field(default_factory=dict)
    """The parameters of the conditions."""
    further_checks: Collection[VersionCheck] = ()
    """Versions that must be unchanged, besides those of the caller and the collection."""
    names: frozenset[str] = frozenset()
    """The fields that are read; of others, long values are left out."""
    room: SizeLimit = field(default_factory=SizeLimit, compare=False)
    joined: Any = None
    """The collection's table, joined to others that the order or groups are about."""
    search: Searched | None = None
    """The search whose records they are, if it is one."""

    @property
    def source(self) -> Any:
        """What statements read from."""
        return self.definition.table if self.joined is None else self.joined

    @property
    def definition(self) -> Definition:
        return self.access.definition

    @property
    def account_id(self) -> str | None:
        """The account; None for all accounts."""
        return self.access.caller.account_id

    @cached_property
    def version_checks(self) -> VersionChecks:
        """The version checks of a statement about these records. Raises Stale."""
        own = (*self.access.caller.version_checks, *self.definition.version_checks)
        return combine(*own, *self.further_checks).within(self.account_id)

    @cached_property
    def where(self) -> list[Condition]:
        """All conditions of the rows; the account is the parameter `_account`."""
        account = None if self.account_id is None else ACCOUNT
        return [*store.scope(self.definition, account, self.access.where), *self.conditions]

    @cached_property
    def parameters(self) -> JSONMapping:
        """The parameters of `where` and of the version checks."""
        own = {"_account": self.account_id, **self.access.parameters}
        return {**own, **self.bound, **self.version_checks.parameters}

    @property
    def is_filtered(self) -> bool:
        """Whether an index may have to serve conditions, and not only the order."""
        is_apart = self.joined is not None or self.definition.view is not None
        is_apart = is_apart or self.search is not None
        return self.access.where is not None or bool(self.conditions) or is_apart

    def read(
        self,
        statement: sa.Select[Any] | PreparedStatement,
        limit: int,
        paging: JSONMapping = NO_PARAMETERS,
        further: Sequence[str] = (),
    ) -> tuple[list[Row], Sequence[Any]]:
        """The rows of a `_with_facts` statement, and its facts without versions.

        Rows get the values of `further` columns, which come before the facts, under these names.
        Values that were too long are read in a second statement. Raises Stale, AnswerTooLarge.
        """
        max_bytes = store.room_for(limit * len(store.long_names(self.definition, self.names)))
        bound_values = {**self.parameters, **paging, "_room": max_bytes}
        with tenancy.through_views() if self.is_filtered else nullcontext():
            if isinstance(statement, PreparedStatement):
                rows: Sequence[Any] = statement.all(bound_values)
            else:
                rows = db.connection().execute(statement, bound_values).all()
        names = list(self.definition.columns)
        width, id = len(names), names.index("id")
        facts_end = len(rows[0]) - len(self.version_checks.tables)
        self.version_checks.check(rows[0][facts_end:])
        present_rows = [row for row in rows if row[id] is not None]
        result = store.rows(self.definition, [row[:width] for row in present_rows])
        facts_start = width + 1 + len(further)
        if further:
            values = [
                zip(further, row[width + 1 : facts_start], strict=True) for row in present_rows
            ]
            result = [{**row, **dict(more)} for row, more in zip(result, values, strict=True)]
        lengths = [row[width] for row in present_rows[:limit]]
        complete = self._complete(result[:limit], lengths, max_bytes)
        return [*complete, *result[limit:]], rows[0][facts_start:facts_end]

    def _complete(self, rows: list[Row], lengths: Sequence[int], max_bytes: int) -> list[Row]:
        """The rows with their long values; those deleted meanwhile are skipped."""
        self.room.take(sum(lengths))
        with_size = list(zip(rows, lengths, strict=True))
        incomplete_ids = [row["id"] for row, size in with_size if size > max_bytes]
        if not incomplete_ids:
            return rows
        definition = self.definition
        conditions = (*self.where, filters.is_any_of(definition.table.c.id, incomplete_ids))
        query = sa.select(*definition.listed).where(*conditions)
        result = store.rows(definition, db.connection().execute(query, self.parameters))
        complete = {(row["account_id"], row["id"]): row for row in result}
        keys = [(row["account_id"], row["id"]) for row in rows]
        return [
            row if size <= max_bytes else {**row, **complete[key]}
            for key, (row, size) in zip(keys, with_size, strict=True)
            if size <= max_bytes or key in complete
        ]


def read_one(
    definition: Definition,
    account_id: str | None,
    record_id: str,
    version_checks: VersionChecks,
    access: Access | None = None,
) -> Row | None:
    """Read one record with version checks. Raises Stale.

    With an access, only if that lets it through, and to be shown: with timestamps as stored.
    """
    version_checks = version_checks.within(account_id)
    where = access.where if access else None
    key = (definition, access is not None, account_id is None, where, version_checks.tables)
    bound_values = {"_account": account_id, "_id": record_id}
    if access is not None:
        bound_values |= access.parameters
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
    keyed = where is None and definition.view is None
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
    if where is None and definition.view is None:
        return sa.select(*columns, *versions).where(*by_id)
    # Citus refuses subqueries as columns beside a rule that follows references.
    current = sa.select(*versions).subquery()
    source = definition.table.join(current, sa.true())
    return sa.select(*columns, *current.c).select_from(source).where(*by_id)


class _PageShape(NamedTuple):
    """All that the text of a page's statement depends on."""

    definition: Definition
    anywhere: bool
    rule: Any
    conditions: tuple[Any, ...]
    parts: Callable[[], Sequence[Part]]
    is_counted: bool
    max_total: int | None
    tables: tuple[str, ...]
    names: frozenset[str]
    cut: int | None
    joined: Any
    search: Searched | None


def read_page(
    selection: Selection,
    parts: Callable[[], Sequence[Part]],
    query: ListQuery,
    *,
    cacheable: bool = False,
) -> tuple[list[Row], int | None]:
    """Read a page and the total with version checks. Raises Stale, AnswerTooLarge.

    `cacheable` statements recur with the same conditions and parts.
    """
    definition, account_id = selection.definition, selection.account_id
    shape = _PageShape(
        definition,
        account_id is None,
        selection.access.where,
        selection.conditions,
        parts,
        query.count,
        query.max_total,
        selection.version_checks.tables,
        selection.names,
        query.cut,
        selection.joined,
        selection.search,
    )
    statement = definition.memo.get(_prepared_page, shape) if cacheable else _page_statement(shape)
    paging = {"_skip": query.skip, "_limit": query.limit, "_most": query.skip + query.limit}
    rows, (total,) = selection.read(statement, query.limit, paging)
    if query.count and total is None and selection.search is None:  # unknown to `totals`
        total = _count(definition, account_id) if rows or query.skip else 0
    return rows, total


def _count(definition: Definition, account_id: str | None) -> int:
    count = sa.select(sa.func.count()).select_from(definition.table)
    return db.connection().scalar(count.where(*store.scope(definition, account_id))) or 0


def _prepared_page(shape: _PageShape) -> PreparedStatement:
    return PreparedStatement(_page_statement(shape))


def _page_statement(shape: _PageShape) -> sa.Select[Any]:
    definition, account = shape.definition, None if shape.anywhere else ACCOUNT
    where = [*store.scope(definition, account, shape.rule), *shape.conditions]
    total: Any = sa.null()
    counts_all = shape.rule is None and not shape.conditions and shape.max_total is None
    counts_all = counts_all and definition.view is None
    if shape.is_counted and shape.search is not None:
        total = shape.search.total
    elif shape.is_counted and counts_all:
        total = totals.total(definition.id, account)
    elif shape.is_counted:
        counted_from: Any = definition.table
        counted_where: Sequence[Any] = where
        if shape.max_total is not None:
            limited = sa.select(sa.literal(1).label("one")).select_from(counted_from).where(*where)
            counted_from, counted_where = limited.limit(shape.max_total + 1).subquery(), ()
        total = sa.select(sa.func.count()).select_from(counted_from).where(*counted_where)
        total = total.scalar_subquery()
    skip, limit = (sa.bindparam(n, type_=sa.Integer) for n in ("_skip", "_limit"))
    rows = sa.select(*store.measured(definition, definition.listed, shape.names, shape.cut))
    rows = rows.select_from(definition.table if shape.joined is None else shape.joined)
    page = _consecutive(rows, where, shape.parts(), MOST).offset(skip).limit(limit)
    statement = _with_facts(page, [total.label("total"), *version_columns(shape.tables)])
    return statement if shape.search is None else statement.add_cte(shape.search.found(where))


def read_parts(
    selection: Selection,
    parts: Sequence[Part],
    limit: int,
    further: Mapping[str, Any] = NO_PARAMETERS,
) -> list[Row]:
    """Read the first rows of a list, and one more if there is, with version checks.

    `further` expressions are read by name. The extra row may lack its long values. Raises Stale,
    AnswerTooLarge.
    """
    definition = selection.definition
    columns = store.measured(definition, definition.listed, selection.names)
    beside = [one.label(f"k{n}") for n, one in enumerate(further.values())]
    rows = sa.select(*columns, *beside).select_from(selection.source)
    page = _consecutive(rows, selection.where, parts, MOST).limit(limit + 1)
    statement = _with_facts(page, selection.version_checks.columns)
    if selection.search is not None:
        statement = statement.add_cte(selection.search.found(selection.where))
    return selection.read(statement, limit, {"_most": limit + 1}, tuple(further))[0]


def _consecutive(
    rows: sa.Select[Any], where: Sequence[Condition], parts: Sequence[Part], max_rows: Any
) -> sa.GenerativeSelect:
    """Select the consecutive parts of a list, at most `max_rows` of each."""
    queries = [rows.where(*where, *part.where).order_by(*part.order_by) for part in parts]
    if len(queries) == 1:
        return queries[0]
    limits = [max_rows] * len(parts)
    for place, gate in ((n, part.gate) for n, part in enumerate(parts) if part.gate is not None):
        if db.has_one_writer():  # SQLite would look at the gate with each record
            limits[place] = sa.case((gate, max_rows), else_=0)
        else:
            queries[place] = queries[place].where(gate)
    # Both databases read the parts of UNION ALL in order, up to the limit.
    pairs = zip(queries, limits, strict=True)
    limited = (sa.select(query.limit(limit).subquery()) for query, limit in pairs)
    return sa.union_all(*limited)


def read_by_ids(selection: Selection, record_ids: Sequence[str]) -> list[Row]:
    """Read records by id, with version checks even if none match. Raises Stale, AnswerTooLarge."""
    definition = selection.definition
    is_one_of = filters.is_any_of(definition.table.c.id, record_ids)
    rows = sa.select(*store.measured(definition, definition.listed, selection.names))
    page = rows.where(*selection.where, is_one_of)
    return selection.read(_with_facts(page, selection.version_checks.columns), len(record_ids))[0]


def read_referring(
    selection: Selection, name: str, record_ids: Sequence[str], most: int
) -> dict[tuple[str, str], list[Row]]:
    """Read the records that refer to others by a field: of each, the newest ones, newest first.

    By the account and the id of what they refer to. The statement has version checks, even if none
    refer. Raises Stale, AnswerTooLarge.
    """
    definition, table = selection.definition, selection.definition.table
    target: Any = table.c.get(name)
    joined, field = None, list[Any]()
    if name in definition.lists:
        links = LINKS.alias()
        here = (links.c.account_id == table.c.account_id, links.c.record_id == table.c.id)
        target, joined = links.c.target_id, table.join(links, sa.and_(*here))
        collection_id, of = definition.list_key(name)
        field = [links.c.collection_id == collection_id, links.c.field == of]
    referring = [*field, filters.is_any_of(target, record_ids)]
    conditions = (*selection.conditions, *referring)
    selection = replace(selection, conditions=conditions, joined=joined)
    # Groups of a view have no time.
    newest = [table.c[n].desc() for n in ("created_at",) if n in table.c] + [table.c.id.asc()]
    place = sa.func.row_number().over(partition_by=(table.c.account_id, target), order_by=newest)
    keys = sa.select(table.c.account_id, table.c.id, target.label("target"), place.label("place"))
    found = keys.select_from(selection.source).where(*selection.where).subquery()
    same = (found.c.account_id == table.c.account_id, found.c.id == table.c.id)
    columns = store.measured(definition, definition.listed, selection.names)
    page = sa.select(*columns, found.c.target.label("k0"), found.c.place.label("k1"))
    page = page.select_from(table.join(found, sa.and_(*same))).where(found.c.place <= most)
    account = None if selection.account_id is None else ACCOUNT
    statement = _with_facts(
        page.where(*store.scope(definition, account)), selection.version_checks.columns
    )
    rows, _ = selection.read(statement, len(record_ids) * most, further=(TARGET, PLACE))
    result: dict[tuple[str, str], list[Row]] = {}
    for row in sorted(rows, key=lambda row: row[PLACE]):
        result.setdefault((row["account_id"], row[TARGET]), []).append(row)
    return result


def _with_facts(query: sa.SelectBase, facts: Sequence[object]) -> sa.Select[Any]:
    """Add columns to a query that are returned even without rows."""
    single_row, page = sa.select(sa.literal(1).label("one")).subquery(), query.subquery()
    return sa.select(*page.c, *facts).select_from(single_row.outerjoin(page, sa.true()))


def check_room(definition: Definition, where: Sequence[Condition]) -> None:
    """Check the total size of records. Raises AnswerTooLarge."""
    names = store.long_names(definition, definition.columns)
    if names:
        octets = [sa.func.coalesce(store.Octets(definition.expressions[n]), 0) for n in names]
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
