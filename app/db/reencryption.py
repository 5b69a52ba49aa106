"""Stored secrets under the newest key, so that older ones can be retired (contract 12)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from cryptography.fernet import InvalidToken

from app import crypto, db

# Every column of what lasts. Sign-ins under way and jobs that wait carry some too, for minutes.
COLUMNS = (
    ("provider_settings", "secrets"),
    ("webhooks", "secret"),
    ("webhooks", "previous_secret"),
    ("workflows", "token"),
)
AT_ONCE = 200
Renew = Callable[[Any], tuple[Any, int]]
JSON_COLUMNS: dict[tuple[str, str], Renew] = {}
"""Columns with secrets within JSON: what renews a value, and counts what it has renewed."""


def of_json(table: str, column: str) -> Callable[[Renew], Renew]:
    """Have a function renew the secrets within a column of JSON. It raises InvalidToken."""

    def register(renew: Renew) -> Renew:
        JSON_COLUMNS[table, column] = renew
        return renew

    return register


def run() -> tuple[int, list[str]]:
    """Encrypt anew what an older key encrypted; safe to repeat, and beside a running service.

    Returns how many secrets that were, and which ones no key reads.
    """
    renewed, unread = 0, list[str]()
    for table, name in COLUMNS:
        column = db.Base.metadata.tables[table].c[name]
        rows = _stored(column)
        for start in range(0, len(rows), AT_ONCE):
            with db.transaction():
                renewed += sum(_renew(column, row, unread) for row in rows[start:][:AT_ONCE])
    for (table, name), renew in JSON_COLUMNS.items():
        column = db.Base.metadata.tables[table].c[name]
        for key in _keys_of(column.table):
            with db.transaction():
                renewed += _renew_json(column, key, renew, unread)
    return renewed, unread


def unreadable() -> list[str]:
    """The stored secrets that no key reads."""
    found = []
    for table, name in COLUMNS:
        column = db.Base.metadata.tables[table].c[name]
        for *key, stored in _stored(column):
            try:
                crypto.decrypt(stored)
            except InvalidToken:
                found.append(_place(column, key))
    for (table, name), renew in JSON_COLUMNS.items():
        column = db.Base.metadata.tables[table].c[name]
        for key in _keys_of(column.table):
            try:
                renew(db.connection().scalar(sa.select(column).where(*_one(column.table, key))))
            except InvalidToken:
                found.append(_place(column, key))
    return found


def _keys_of(table: Any) -> list[list[Any]]:
    rows = db.connection().execute(sa.select(*table.primary_key))
    return [list(row) for row in rows]


def _one(table: Any, key: list[Any]) -> list[Any]:
    return [one == value for one, value in zip(table.primary_key, key, strict=True)]


def _renew_json(column: sa.Column[Any], key: list[Any], renew: Renew, unread: list[str]) -> int:
    mine = _one(column.table, key)
    stored = db.connection().scalar(sa.select(column).where(*mine).with_for_update())
    if stored is None:  # deleted meanwhile
        return 0
    try:
        new, count = renew(stored)
    except InvalidToken:
        unread.append(_place(column, key))
        return 0
    if count:
        table: Any = column.table
        db.connection().execute(sa.update(table).where(*mine).values({column.name: new}))
    return count


def _place(column: sa.Column[Any], key: list[Any]) -> str:
    return f"{column.table.name}.{column.name} of {'/'.join(map(str, key))}"


def _stored(column: sa.Column[Any]) -> list[Any]:
    chosen = sa.select(*column.table.primary_key, column).where(column.is_not(None))
    return list(db.connection().execute(chosen))


def _renew(column: sa.Column[Any], row: Any, unread: list[str]) -> int:
    *key, stored = row
    try:
        new = crypto.renewed(stored)
    except InvalidToken:
        unread.append(_place(column, key))
        return 0
    if new is None:
        return 0
    table: Any = column.table
    # What somebody has changed meanwhile is encrypted with the newest key already.
    change = sa.update(table).where(*_one(table, key), column == stored)
    values = {column.name: new, "updated_at": table.c.updated_at}  # nothing that anybody sees
    return int(db.connection().execute(change.values(values)).rowcount)
