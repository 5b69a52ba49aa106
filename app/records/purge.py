"""Removes the rows of a closed account in the background, piece by piece."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from app import db, events, jobs
from app.audit import sealing
from app.collections import definitions, search_words
from app.collections import service as collections
from app.db import versioned_cache
from app.db.policy import OnClose
from app.records.store import writes
from app.types import JSONMapping

PIECE = 500


@events.subscribe(events.AccountClosed)
def _remove_later(event: events.AccountClosed) -> None:
    # Again when the requests and jobs that were running then have ended.
    for delay in (0, jobs.IN_FLIGHT_SECONDS):
        jobs.enqueue("records.remove_account", {}, account_id=event.account_id, after=delay)


@jobs.job("records.remove_account")
def remove_account(payload: JSONMapping) -> None:
    """Remove an account's rows except its audit entries; can be interrupted and run again."""
    account_id = payload["account_id"]
    sealing.settle(account_id)  # or the changes for the feed alone would get there later
    with versioned_cache.reloading():
        remaining = [definitions.get(name) for name in collections.names()]
    for definition in remaining:
        table = definition.table
        nullable = [
            f.name
            for f in definition.fields.values()
            if f.leads_to and not (f.required or f.multiple)
        ]
        if nullable:
            referring = sa.or_(*(table.c[name].is_not(None) for name in nullable))
            cleared = sa.update(table).values(dict.fromkeys(nullable)).where(referring)
            _piecewise(table, account_id, cleared, referring)
    while remaining:
        # Records that others refer to wait until those are gone.
        waiting = [one for one in remaining if not _emptied(one.table, account_id)]
        if len(waiting) == len(remaining):
            # Records with required references to each other are deleted together.
            tables = [one.table for one in waiting]
            with db.transaction():
                writes.execute_deletes(
                    [sa.delete(table).where(table.c.account_id == account_id) for table in tables]
                )
        remaining = waiting
    for table in reversed(emptied_tables()):
        _emptied(table, account_id)
    with db.transaction():
        search_words.forget_deleted()


def emptied_tables() -> list[sa.Table]:
    """Return the core's tables that an account leaves no row in; referenced ones come first."""
    policies = db.policies()
    return [
        table
        for table in db.Base.metadata.sorted_tables
        if "account_id" in table.c and policies[table.name].on_close is OnClose.DELETED
    ]


def _emptied(table: Any, account_id: str) -> bool:
    try:
        _piecewise(table, account_id, sa.delete(table))
    except IntegrityError:
        return False
    return True


def _piecewise(table: Any, account_id: str, change: Any, *conditions: Any) -> None:
    """Run a change of an account's rows that meet the conditions, in pieces by primary key."""
    columns = [column for column in table.primary_key if column.name != "account_id"]
    columns = columns or [table.c.account_id]
    key, mine = sa.tuple_(*columns), table.c.account_id == account_id
    ordered = sa.select(*columns).where(mine, *conditions).order_by(*columns)
    remaining: Any = sa.true()
    while remaining is not None:
        with db.transaction() as session:
            last = session.execute(ordered.where(remaining).offset(PIECE - 1).limit(1)).first()
            piece = (mine, remaining) if last is None else (mine, remaining, key <= tuple(last))
            # One audit entry stands for all of it: that of the closing.
            session.execute(change.where(*piece), execution_options={"audited_as_one": True})
        remaining = None if last is None else key > tuple(last)
