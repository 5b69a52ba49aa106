"""Exact numbers of records, per account and collection (docs/adr/0029).

Triggers count in the transaction that inserts or deletes, whoever sends the statement. On
PostgreSQL concurrent writers use different rows, so none waits for another; a number is the sum of
its rows. A table without triggers, as processes of an older release create it, has no rows here:
its records are counted one by one until `ensure` adds the triggers.
"""

from __future__ import annotations

from collections.abc import Collection

import sqlalchemy as sa

from app import db
from app.accounts.models import Account
from app.collections import table as tables
from app.collections.models import RecordCount
from app.context import tenancy

COUNTS: sa.FromClause = RecordCount.__table__
EVENTS = {"insert": ("NEW", 1), "delete": ("OLD", -1)}
TRIGGER = "count_{event}_{id}"
ON_POSTGRES = """
CREATE OR REPLACE TRIGGER "{trigger}" AFTER {event} ON {table}
REFERENCING {row} TABLE AS changed
FOR EACH STATEMENT EXECUTE FUNCTION count_records('{id}', '{step}')
"""
ON_SQLITE = """
CREATE TRIGGER IF NOT EXISTS "{trigger}" AFTER {event} ON {table} BEGIN
  INSERT INTO record_counts (account_id, collection_id, slot, records)
  VALUES ({row}.account_id, '{id}', '0', {step})
  ON CONFLICT (account_id, collection_id, slot) DO UPDATE SET records = records + {step};
END
"""
FOUND = {
    "postgresql": "SELECT tgname FROM pg_trigger WHERE tgname IN :names AND tgenabled = 'O'",
    "sqlite": "SELECT name FROM sqlite_master WHERE type = 'trigger' AND name IN :names",
}


def ensure(table: sa.Table, collection_id: str) -> None:
    """Create the triggers if they are missing, and count the records; in a schema change."""
    if _is_counted(collection_id):
        return
    on_sqlite = db.has_one_writer()
    name = db.connection().dialect.identifier_preparer.format_table(table)
    if not on_sqlite:
        tables.run([f"LOCK TABLE {name} IN SHARE ROW EXCLUSIVE MODE"])
    tables.run(
        (ON_SQLITE if on_sqlite else ON_POSTGRES).format(
            trigger=TRIGGER.format(event=event, id=collection_id),
            event=event.upper(),
            table=name,
            row=row,
            id=collection_id,
            step=step,
        )
        for event, (row, step) in EVENTS.items()
    )
    with tenancy.as_owner():
        forget(collection_id)
        account, records = table.c.account_id, sa.func.count()
        counted = sa.select(account, sa.literal(collection_id), sa.literal("0"), records)
        names = ["account_id", "collection_id", "slot", "records"]
        db.connection().execute(
            sa.insert(COUNTS).from_select(names, counted.group_by(account))  # type: ignore[arg-type]
        )


def forget(collection_id: str) -> None:
    """Remove the numbers of a collection whose table is gone."""
    db.connection().execute(
        sa.delete(COUNTS).where(COUNTS.c.collection_id == collection_id)  # type: ignore[arg-type]
    )


def total(collection_id: str, account_id: object = None) -> sa.ColumnElement[int | None]:
    """The number of an account's records (None: of all accounts'); null if it is not known."""
    where = [COUNTS.c.collection_id == collection_id]
    if account_id is not None:
        where.append(COUNTS.c.account_id == account_id)
    return sa.select(_summed()).where(*where).scalar_subquery()


def by_collection(ids: Collection[str]) -> dict[str, int]:
    """The known numbers of these collections' records over all accounts."""
    return _by_collection(COUNTS.c.collection_id.in_(ids))


def of_account(account_id: str) -> dict[str, int]:
    """The known numbers of an account's records, by collection."""
    return _by_collection(COUNTS.c.account_id == account_id)


def by_account(collection_id: str, limit: int) -> list[tuple[str, str, int]]:
    """The accounts with most records of a collection: id, name and number, as far as known."""
    records = _summed()
    query = sa.select(Account.id, Account.name, records)
    query = query.join(COUNTS, COUNTS.c.account_id == Account.id)
    query = query.where(COUNTS.c.collection_id == collection_id, Account.is_active)
    query = query.group_by(Account.id, Account.name).having(records > 0)
    rows = db.connection().execute(query.order_by(records.desc(), Account.id).limit(limit))
    return [(row[0], row[1], row[2]) for row in rows]


def _by_collection(condition: sa.ColumnElement[bool]) -> dict[str, int]:
    query = sa.select(COUNTS.c.collection_id, _summed()).where(condition)
    rows = db.connection().execute(query.group_by(COUNTS.c.collection_id))
    return {row[0]: row[1] for row in rows}


def _summed() -> sa.Cast[int]:
    return sa.cast(sa.func.sum(COUNTS.c.records), sa.BigInteger)


def _is_counted(collection_id: str) -> bool:
    names = [TRIGGER.format(event=event, id=collection_id) for event in EVENTS]
    query = sa.text(FOUND[db.connection().dialect.name])
    found = db.connection().execute(query.bindparams(sa.bindparam("names", names, expanding=True)))
    return len(found.all()) == len(EVENTS)
