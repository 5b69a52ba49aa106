"""What superadmins read of the audit log (spec 4.6, contract section 7)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import sqlalchemy as sa

from app import clock, db
from app.audit import entries
from app.audit.entries import CHANGES, HEADS, LOG, Entry, Mask
from app.auth.principal import Principal
from app.collections.models import Collection
from app.errors import InvalidValues, NotFound, problem

# What could tell a value that is masked (its digests, and itself) is not to be sorted by.
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
    asked: Mapping[str, Any], *, by: Principal, most: int | None = None
) -> tuple[list[Entry], int | None]:
    """The entries that match, the newest first unless asked otherwise, and how many there are.

    Where there are more than `most`, no more than that they are more is counted.
    """
    total = None
    if asked["include_total"]:
        counted = sa.select(CHANGES.c.entries).where(*_where(asked, CHANGES))
        if most is not None:
            counted = counted.limit(most + 1)  # of changes, each of which makes an entry at least
        some = counted.subquery()
        total = int(db.connection().scalar(sa.select(sa.func.sum(some.c.entries))) or 0)
    rows = db.connection().execute(_listed(asked))
    return list(map(Mask(by), map(entries.shown, rows))), total


def _listed(asked: Mapping[str, Any]) -> sa.Select[Any]:
    name, ascending = _sorted_by(asked), asked["sort_order"] == "asc"
    changes, last = CHANGES.select().where(*_where(asked, CHANGES)), asked["skip"] + asked["limit"]
    its_end = "first_id" if ascending else "last_id"
    by = its_end if name == "id" else name
    if by in CHANGES.c:
        # Each makes an entry at least, so that no more of them can be on the page or before it.
        changes = changes.order_by(*_order((CHANGES.c[by], CHANGES.c.first_id), ascending))
        changes = changes.limit(last)
    found = changes.subquery()
    place = (found.c[name], found.c.first_id) if name in CHANGES.c else (LOG.c[name],)
    page = sa.select(LOG).select_from(entries.told_by(changes=found))
    page = page.order_by(*_order((*place, LOG.c.id), ascending))
    return page.offset(asked["skip"]).limit(asked["limit"])


def get(id: int, *, by: Principal) -> Entry:
    """One entry. Raises NotFound."""
    # An index finds an entry of a chain by its id, so each chain is asked.
    chains = HEADS.join(LOG, sa.and_(LOG.c.account_id == HEADS.c.account_id, LOG.c.id == id))
    row = db.connection().execute(sa.select(LOG).select_from(chains)).first()
    if row is None:
        raise NotFound("There is no such entry.")
    return Mask(by)(entries.shown(row))


def exported(asked: Mapping[str, Any], *, by: Principal) -> Iterator[Entry]:
    """All entries that match, chain by chain, each in its order."""
    return map(Mask(by), entries.in_order(_where(asked, LOG)))


def told_of_export(asked: Mapping[str, Any], *, by: Principal) -> dict[str, int]:
    """How many values of an export's entries are masked, and how many erased."""
    mask, made = Mask(by), Collection.table_name == LOG.c.table_name
    alike = [
        LOG.c.table_name,
        LOG.c.column_name,
        LOG.c.salt.is_(None).label("erased"),
        (LOG.c.occurred_at < Collection.created_at).label("earlier"),
    ]
    first, total = sa.func.min(LOG.c.occurred_at), sa.func.count()
    counted = sa.select(*alike, first.label("first"), total.label("total")).group_by(*alike)
    chosen = counted.select_from(LOG.outerjoin(Collection, made)).where(*_where(asked, LOG))
    found = {"values_masked": 0, "values_erased": 0}
    for row in db.connection().execute(chosen):
        if row.erased:
            found["values_erased"] += row.total
        elif mask.hides(row.table_name, row.column_name, clock.iso(row.first)):
            found["values_masked"] += row.total
    return found


def _where(asked: Mapping[str, Any], table: sa.Table) -> list[Any]:
    where = [table.c[name] == asked[name] for name in FILTERS if name in asked]
    if "from_date" in asked:
        where.append(table.c.occurred_at >= asked["from_date"])
    if "to_date" in asked:
        where.append(table.c.occurred_at <= asked["to_date"])
    return where


def _sorted_by(asked: Mapping[str, Any]) -> str:
    name: str = asked["sort_by"]
    if name not in SORTABLE:
        message = f"Entries are not sorted by {name[:80]}; by {', '.join(SORTABLE)}."
        raise InvalidValues([problem("sort_by", "unknown_field", message)])
    return name


def _order(columns: Iterable[Any], ascending: bool) -> list[Any]:
    # The direction of the ids is that of the rest, so that an index is walked one way.
    orders = (column.asc() if ascending else column.desc() for column in columns)
    return [order.nulls_last() if order.element.nullable else order for order in orders]
