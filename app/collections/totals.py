"""Exact numbers of records, per account and collection (docs/adr/0029).

Triggers count in the transaction that inserts or deletes, whoever sends the statement. On
PostgreSQL concurrent writers use different rows, so none waits for another; a number is the sum of
its rows. A table without triggers, as processes of an older release create it, has no rows here:
its records are counted one by one until `ensure` adds the triggers.

The triggers also add up the bytes of the rows. On PostgreSQL the size of a row is that of its text,
which a changed schema changes for all rows: a job then measures them again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import sqlalchemy as sa

from app import db, jobs
from app.accounts.models import Account
from app.collections import table as tables
from app.collections.models import RecordCount
from app.context import tenancy

COUNTS: sa.FromClause = RecordCount.__table__
EVENTS = {"insert": ("NEW", 1), "delete": ("OLD", -1)}
NAMES = (*EVENTS, "update")
TRIGGER = "count_{event}_{id}"
ON_POSTGRES = """
CREATE OR REPLACE TRIGGER "{trigger}" AFTER {event} ON {table}
REFERENCING {row} TABLE AS changed
FOR EACH STATEMENT EXECUTE FUNCTION count_records('{id}', '{step}')
"""
UPDATE_ON_POSTGRES = """
CREATE OR REPLACE TRIGGER "{trigger}" AFTER UPDATE ON {table}
REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
FOR EACH STATEMENT EXECUTE FUNCTION measure_records('{id}')
"""
ON_SQLITE = """
CREATE TRIGGER "{trigger}" AFTER {event} ON {table} BEGIN
  INSERT INTO record_counts (account_id, collection_id, slot, records, bytes)
  VALUES ({row}.account_id, '{id}', '0', {step}, {size})
  ON CONFLICT (account_id, collection_id, slot) DO UPDATE
  SET records = records + excluded.records, bytes = bytes + excluded.bytes;
END
"""
MAX_PRINTED = 90
MEASURE = "collections.measure"
CORRECT = """
INSERT INTO record_counts (account_id, collection_id, slot, records, bytes)
SELECT account_id, :id, '0', 0, sum(bytes) FROM (
  SELECT account_id, octet_length((t.*)::text) AS bytes FROM {table} AS t
  UNION ALL
  SELECT account_id, -bytes FROM record_counts WHERE collection_id = :id
) AS both_ GROUP BY account_id HAVING sum(bytes) <> 0
ON CONFLICT (account_id, collection_id, slot)
DO UPDATE SET bytes = record_counts.bytes + excluded.bytes
"""
FOUND = {
    "postgresql": "SELECT tgname FROM pg_trigger WHERE tgname IN :names AND tgenabled = 'O'",
    "sqlite": "SELECT name FROM sqlite_master WHERE type = 'trigger' AND name IN :names",
}


def ensure(table: sa.Table, collection_id: str) -> None:
    """Create the triggers if they are missing, and count the records; in a schema change."""
    if _is_counted(collection_id):
        if not db.has_one_writer() and by_collection([collection_id]).get(collection_id):
            jobs.enqueue(MEASURE, {"collection_id": collection_id}, account_id=jobs.INSTANCE)
        return
    on_sqlite = db.has_one_writer()
    name = db.connection().dialect.identifier_preparer.format_table(table)
    if not on_sqlite:
        tables.run([f"LOCK TABLE {name} IN SHARE ROW EXCLUSIVE MODE"])
    size = _add_on_sqlite(name, collection_id) if on_sqlite else _add(name, collection_id)
    with tenancy.as_owner():
        forget(collection_id)
        account, records = table.c.account_id, sa.func.count()
        bytes_: Any = sa.func.coalesce(sa.func.sum(sa.literal_column(size)), 0)
        counted = sa.select(account, sa.literal(collection_id), sa.literal("0"), records, bytes_)
        names = ["account_id", "collection_id", "slot", "records", "bytes"]
        db.connection().execute(
            sa.insert(COUNTS).from_select(names, counted.group_by(account))  # type: ignore[arg-type]
        )


def _add(table: str, collection_id: str) -> str:
    """Add the triggers on PostgreSQL; returns the size of a row in SQL."""
    values = {"table": table, "id": collection_id}
    statements = [
        ON_POSTGRES.format(
            trigger=TRIGGER.format(event=event, id=collection_id),
            event=event.upper(),
            row=row,
            step=step,
            **values,
        )
        for event, (row, step) in EVENTS.items()
    ]
    trigger = TRIGGER.format(event="update", id=collection_id)
    tables.run([*statements, UPDATE_ON_POSTGRES.format(trigger=trigger, **values)])
    return f"octet_length(({table}.*)::text)"


def _add_on_sqlite(table: str, collection_id: str) -> str:
    """Replace the triggers on SQLite; returns the size of a row in SQL."""
    columns = db.connection().exec_driver_sql(f"PRAGMA table_info({table})").all()
    quote = db.connection().dialect.identifier_preparer.quote_identifier
    names = [quote(column.name) for column in columns]
    old, new = (_size_on_sqlite(names, f"{row}.") for row in ("OLD", "NEW"))
    sizes = {"insert": new, "delete": f"-({old})", "update": f"({new}) - ({old})"}
    for event in NAMES:
        row, step = EVENTS.get(event, ("NEW", 0))
        trigger = TRIGGER.format(event=event, id=collection_id)
        statement = ON_SQLITE.format(
            trigger=trigger,
            event=event.upper(),
            table=table,
            row=row,
            id=collection_id,
            step=step,
            size=sizes[event],
        )
        # A former release's counts no bytes.
        tables.run([f'DROP TRIGGER IF EXISTS "{trigger}"', statement])
    return _size_on_sqlite(names, "")


def _size_on_sqlite(names: Sequence[str], prefix: str) -> str:
    # Few steps for SQLite, whose functions take 100 arguments. Null prints as nothing.
    parts = []
    for first in range(0, len(names), MAX_PRINTED):
        some = [f"{prefix}{name}" for name in names[first : first + MAX_PRINTED]]
        parts.append(f"length(CAST(printf('{'%s' * len(some)}', {', '.join(some)}) AS BLOB))")
    return " + ".join(parts)


def measure(table: sa.Table, collection_id: str) -> None:
    """Correct the bytes of a collection on PostgreSQL, in the open transaction.

    One statement reads rows and counts in one snapshot, and adds the difference: writers that it
    does not see add theirs.
    """
    name = db.connection().dialect.identifier_preparer.format_table(table)
    with tenancy.as_owner():
        db.connection().execute(sa.text(CORRECT.format(table=name)), {"id": collection_id})


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
    names = [TRIGGER.format(event=event, id=collection_id) for event in NAMES]
    query = sa.text(FOUND[db.connection().dialect.name])
    found = db.connection().execute(query.bindparams(sa.bindparam("names", names, expanding=True)))
    return len(found.all()) == len(NAMES)
