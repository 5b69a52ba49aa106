"""Reading the audit log, for superadmins (spec 4.6, contract section 7)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import sqlalchemy as sa

from app import clock, db
from app.accounts.types import Query
from app.audit import entries
from app.audit.entries import CHANGES, HEADS, LOG, Entry, Mask
from app.auth.principal import Principal
from app.collections.models import Collection
from app.errors import InvalidValues, NotFound, problem

# Not the values and digests, as their order could reveal masked values.
SORTABLE = (
    "id",
    "account_id",
    "operation",
    "table_name",
    "record_id",
    "column_name",
    "user_id",
    "request_id",
    "occurred_at",
)
FILTERS = ("account_id", "table_name", "record_id", "user_id", "operation")


def page(
    query: Query, *, by: Principal, max_total: int | None = None
) -> tuple[list[Entry], int | None]:
    """One page of the entries that match, by default the newest first, and the total.

    The total is approximate beyond `max_total`.
    """
    total = None
    if query["include_total"]:
        counts = sa.select(CHANGES.c.entries).where(*_conditions(query, CHANGES))
        if max_total is not None:
            counts = counts.limit(max_total + 1)  # changes, which have at least one entry each
        changes = counts.subquery()
        total = int(db.connection().scalar(sa.select(sa.func.sum(changes.c.entries))) or 0)
    return list(map(Mask(by), _on_page(query))), total


def _on_page(query: Query) -> Iterator[Entry]:
    changes: dict[tuple[str, int], dict[int, Entry]] = {}
    for row in db.connection().execute(_page_query(query)):
        key = (row.account_id, row.first_id)
        if key not in changes:
            changes[key] = {entry["id"]: entry for entry in entries.of_change(row)}
        yield changes[key][row.entry_id]


def _page_query(query: Query) -> sa.Select[Any]:
    """The ids of the entries on a page, each with its whole change."""
    name, ascending = _sort_column(query), query["sort_order"] == "asc"
    changes, last = (
        CHANGES.select().where(*_conditions(query, CHANGES)),
        query["skip"] + query["limit"],
    )
    end_column = "first_id" if ascending else "last_id"
    by = end_column if name == "id" else name
    if by in CHANGES.c:
        # Each change has at least one entry, so later changes cannot be on this page.
        changes = changes.order_by(*_order((CHANGES.c[by], CHANGES.c.first_id), ascending))
        changes = changes.limit(last)
    selected = changes.subquery()
    order = (selected.c[name], selected.c.first_id) if name in CHANGES.c else (LOG.c[name],)
    same = (LOG.c.account_id == selected.c.account_id, LOG.c.first_id == selected.c.first_id)
    page = sa.select(LOG.c.id.label("entry_id"), *entries.columns(selected))
    page = page.select_from(selected.join(LOG, sa.and_(*same)))
    page = page.order_by(*_order((*order, LOG.c.id), ascending))
    return page.offset(query["skip"]).limit(query["limit"])


def get(id: int, *, by: Principal) -> Entry:
    """The entry with this id. Raises NotFound."""
    # The primary key starts with the account, so the id is looked up in every chain.
    mine = CHANGES.alias("mine")
    before = (mine.c.account_id == HEADS.c.account_id, mine.c.first_id <= id)
    newest = sa.select(sa.func.max(mine.c.first_id)).where(*before).scalar_subquery()
    same = (CHANGES.c.account_id == HEADS.c.account_id, CHANGES.c.first_id == newest)
    chains = HEADS.join(CHANGES, sa.and_(*same))
    changes = sa.select(*entries.columns()).select_from(chains).where(CHANGES.c.last_id >= id)
    for change in db.connection().execute(changes):
        for entry in entries.of_change(change):
            if entry["id"] == id:
                return Mask(by)(entry)
    raise NotFound("There is no such entry.")


def export(query: Query, *, by: Principal) -> Iterator[Entry]:
    """All entries that match, chain by chain in order of their ids."""
    return map(Mask(by), entries.iter_entries(_conditions(query, CHANGES)))


def count_hidden(query: Query, *, by: Principal) -> dict[str, int]:
    """The numbers of an export's entries with masked and with erased values."""
    mask, is_collection = Mask(by), Collection.table_name == LOG.c.table_name
    groups = [
        LOG.c.table_name,
        LOG.c.column_name,
        LOG.c.salt.is_(None).label("erased"),
        (LOG.c.occurred_at < Collection.created_at).label("earlier"),
    ]
    first, total = sa.func.min(LOG.c.occurred_at), sa.func.count()
    counts = sa.select(*groups, first.label("first"), total.label("total")).group_by(*groups)
    statement = counts.select_from(LOG.outerjoin(Collection, is_collection)).where(
        *_conditions(query, LOG)
    )
    totals = {"values_masked": 0, "values_erased": 0}
    for row in db.connection().execute(statement):
        if row.erased:
            totals["values_erased"] += row.total
        elif mask.hides(row.table_name, row.column_name, clock.iso(row.first)):
            totals["values_masked"] += row.total
    return totals


def _conditions(query: Query, table: sa.FromClause) -> list[sa.ColumnElement[bool]]:
    conditions = [table.c[name] == query[name] for name in FILTERS if name in query]
    if "from_date" in query:
        conditions.append(table.c.occurred_at >= query["from_date"])
    if "to_date" in query:
        conditions.append(table.c.occurred_at <= query["to_date"])
    return conditions


def _sort_column(query: Query) -> str:
    name: str = query["sort_by"]
    if name not in SORTABLE:
        message = f"Cannot sort by {name[:80]}. Use one of {', '.join(SORTABLE)}."
        raise InvalidValues([problem("sort_by", "unknown_field", message)])
    return name


def _order(columns: Iterable[sa.ColumnElement[Any]], ascending: bool) -> list[Any]:
    # Ids have the direction of the other columns, so that one index serves both.
    orders = (column.asc() if ascending else column.desc() for column in columns)
    return [
        order.nulls_last() if getattr(order.element, "name", "") == "request_id" else order
        for order in orders
    ]
