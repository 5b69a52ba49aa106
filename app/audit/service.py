"""What superadmins read of the audit log (spec 4.6, contract section 7)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import sqlalchemy as sa

from app import db
from app.audit import entries
from app.audit.entries import Entry, Mask
from app.audit.models import AuditEntry
from app.auth.principal import Principal
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


def page(asked: Mapping[str, Any], *, by: Principal) -> tuple[list[Entry], int | None]:
    """The entries that match, the newest first unless asked otherwise, and how many there are."""
    where, total = _where(asked), None
    if asked["include_total"]:
        total = db.connection().scalar(
            sa.select(sa.func.count()).select_from(AuditEntry).where(*where)
        )
    chosen = sa.select(entries.LOG).where(*where).order_by(*_order(asked))
    rows = db.connection().execute(chosen.offset(asked["skip"]).limit(asked["limit"]))
    return list(map(Mask(by), map(entries.shown, rows))), total


def get(id: int, *, by: Principal) -> Entry:
    """One entry. Raises NotFound."""
    row = db.connection().execute(sa.select(entries.LOG).where(AuditEntry.id == id)).first()
    if row is None:
        raise NotFound("There is no such entry.")
    return Mask(by)(entries.shown(row))


def exported(asked: Mapping[str, Any], *, by: Principal) -> Iterator[Entry]:
    """All entries that match, chain by chain, each in its order."""
    return map(Mask(by), entries.in_order(_where(asked)))


def told_of_export(asked: Mapping[str, Any], *, by: Principal) -> dict[str, int]:
    """How many values of an export's entries are masked, and how many erased."""
    columns, mask = (AuditEntry.table_name, AuditEntry.column_name), Mask(by)
    erased = AuditEntry.salt.is_(None).label("erased")
    counted = sa.select(*columns, erased, sa.func.count()).where(*_where(asked))
    found = {"values_masked": 0, "values_erased": 0}
    for table_name, column, is_erased, count in db.connection().execute(
        counted.group_by(*columns, erased)
    ):
        if is_erased:
            found["values_erased"] += count
        elif mask.hides(table_name, column):
            found["values_masked"] += count
    return found


def _where(asked: Mapping[str, Any]) -> list[Any]:
    where = [getattr(AuditEntry, name) == asked[name] for name in FILTERS if name in asked]
    if "from_date" in asked:
        where.append(AuditEntry.occurred_at >= asked["from_date"])
    if "to_date" in asked:
        where.append(AuditEntry.occurred_at <= asked["to_date"])
    return where


def _order(asked: Mapping[str, Any]) -> list[Any]:
    name = asked["sort_by"]
    if name not in SORTABLE:
        message = f"Entries are not sorted by {name[:80]}; by {', '.join(SORTABLE)}."
        raise InvalidValues([problem("sort_by", "unknown_field", message)])
    # The direction of the id is that of the rest, so that an index is walked one way.
    columns = [getattr(AuditEntry, one) for one in dict.fromkeys((name, "id"))]
    ascending = asked["sort_order"] == "asc"
    return [column.asc() if ascending else column.desc() for column in columns]
