"""What a closed account leaves behind is removed in the background, piece by piece."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from app import db, events, jobs
from app.collections import definitions
from app.collections import service as collections
from app.collections.definitions import Definition
from app.db import versioned_cache
from app.db.policy import OnClose
from app.records.store import writes
from app.types import JSONMapping

PIECE = 500


@events.subscribe(events.AccountClosed)
def _remove_later(event: events.AccountClosed) -> None:
    # Once more when all is over that was under way as the account was closed.
    for delay in (0, jobs.IN_FLIGHT_SECONDS):
        jobs.enqueue("records.remove_account", {}, account_id=event.account_id, after=delay)


@jobs.job("records.remove_account")
def remove_account(payload: JSONMapping) -> None:
    """Remove all that is an account's but its audit entries; run again, it goes on where it was."""
    account_id = payload["account_id"]
    with versioned_cache.reloading():
        remaining = [definitions.get(name) for name in collections.names()]
    for definition in remaining:
        _cut_references(definition, account_id)
    while remaining:
        # What others refer to has to wait until they are gone.
        waiting = [one for one in remaining if not _emptied(one.table, account_id)]
        if len(waiting) == len(remaining):
            # Records that need each other go at once.
            with db.transaction():
                writes.execute_deletes(
                    [
                        sa.delete(one.table).where(one.table.c.account_id == account_id)
                        for one in waiting
                    ]
                )
        remaining = waiting
    for table in reversed(emptied_tables()):
        _emptied(table, account_id)


def emptied_tables() -> list[sa.Table]:
    """Return the core's tables that an account leaves no row in; referenced ones come first."""
    policies = db.policies()
    return [
        table
        for table in db.Base.metadata.sorted_tables
        if "account_id" in table.c and policies[table.name].on_close is OnClose.DELETED
    ]


def _cut_references(definition: Definition, account_id: str) -> None:
    table = definition.table
    nullable = [f.name for f in definition.fields.values() if f.collection and not f.required]
    if nullable:
        referring = sa.or_(*(table.c[name].is_not(None) for name in nullable))
        cut = sa.update(table).values(dict.fromkeys(nullable))
        _piecewise(table, account_id, cut.where(referring), referring)


def _emptied(table: Any, account_id: str) -> bool:
    try:
        _piecewise(table, account_id, sa.delete(table))
    except IntegrityError:
        return False
    return True


def _key(table: Any) -> list[Any]:
    return [column for column in table.primary_key if column.name != "account_id"] or [
        table.c.account_id
    ]


def _piecewise(table: Any, account_id: str, change: Any, *which: Any) -> None:
    key, mine = sa.tuple_(*_key(table)), table.c.account_id == account_id
    ordered = sa.select(*_key(table)).where(mine, *which).order_by(*_key(table))
    left: Any = sa.true()  # what was changed already is not looked at again
    while left is not None:
        with db.transaction() as session:
            last = session.execute(ordered.where(left).offset(PIECE - 1).limit(1)).first()
            some = (mine, left) if last is None else (mine, left, key <= tuple(last))
            # One entry told of all of it when the account was closed.
            session.execute(change.where(*some), execution_options={"audited_as_one": True})
        left = None if last is None else key > tuple(last)
