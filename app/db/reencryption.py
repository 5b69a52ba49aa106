"""Re-encrypts stored secrets with the newest key, so that older keys can retire."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import sqlalchemy as sa
from cryptography.fernet import InvalidToken

from app import crypto, db

BATCH_ROWS = 200
Renew = Callable[[Any], tuple[Any, int]]
Key = Sequence[object]
JSON_COLUMNS: dict[tuple[str, str], Renew] = {}
"""JSON columns with secrets: a function that re-encrypts a value and counts the changes."""


def json_column(table: str, column: str) -> Callable[[Renew], Renew]:
    """Register how to re-encrypt a JSON column. The function raises InvalidToken."""

    def register(renew: Renew) -> Renew:
        JSON_COLUMNS[table, column] = renew
        return renew

    return register


def run(progress: Callable[[int], None] = lambda done: None) -> tuple[int, list[str]]:
    """Re-encrypt everything that an older key encrypted; safe to repeat and to run online.

    Calls `progress` with the number of values read so far. Returns the number of secrets
    re-encrypted, and the places of those that no key decrypts.
    """
    done, renewed, unreadable = 0, 0, list[str]()
    for column in text_columns():
        rows = _stored(column)
        for start in range(0, len(rows), BATCH_ROWS):
            with db.transaction():
                batch = rows[start : start + BATCH_ROWS]
                renewed += sum(_renew(column, row, unreadable) for row in batch)
            progress(done := done + len(batch))
    for column, renew in zip(_columns(JSON_COLUMNS), JSON_COLUMNS.values(), strict=True):
        for key in _keys_of(column.table):
            with db.transaction():
                renewed += _renew_json(column, key, renew, unreadable)
            progress(done := done + 1)
    return renewed, unreadable


def text_columns() -> list[sa.Column[Any]]:
    """Return every column with secrets as text.

    Sign-ins in progress and queued jobs hold some, too, but only for minutes.
    """
    declared = sorted((name, policy.encrypted) for name, policy in db.policies().items())
    return list(_columns((name, column) for name, columns in declared for column in columns))


def undecryptable() -> list[str]:
    """Return the places of stored secrets that no key decrypts."""
    places = []
    for column in text_columns():
        for row in _stored(column):
            try:
                crypto.decrypt(row[-1])
            except InvalidToken:
                places.append(_place(column, row[:-1]))
    for column, renew in zip(_columns(JSON_COLUMNS), JSON_COLUMNS.values(), strict=True):
        for key in _keys_of(column.table):
            statement = sa.select(column).where(*_matches(column.table, key))
            try:
                renew(db.connection().scalar(statement))
            except InvalidToken:
                places.append(_place(column, key))
    return places


def _columns(names: Iterable[tuple[str, str]]) -> Iterator[sa.Column[Any]]:
    for table, name in names:
        yield db.Base.metadata.tables[table].c[name]


def _keys_of(table: sa.FromClause) -> Sequence[Key]:
    return db.connection().execute(sa.select(*table.primary_key)).all()


def _matches(table: sa.FromClause, key: Key) -> list[sa.ColumnElement[bool]]:
    return [column == value for column, value in zip(table.primary_key, key, strict=True)]


def _renew_json(column: sa.Column[Any], key: Key, renew: Renew, unreadable: list[str]) -> int:
    own = _matches(column.table, key)
    stored = db.connection().scalar(sa.select(column).where(*own).with_for_update())
    if stored is None:  # deleted meanwhile
        return 0
    try:
        new, count = renew(stored)
    except InvalidToken:
        unreadable.append(_place(column, key))
        return 0
    if count:
        db.connection().execute(_update(column).where(*own).values({column.name: new}))
    return count


def _update(column: sa.Column[Any]) -> sa.Update:
    return sa.update(db.Base.metadata.tables[column.table.name])


def _place(column: sa.Column[Any], key: Key) -> str:
    return f"{column.table.name}.{column.name} of {'/'.join(map(str, key))}"


def _stored(column: sa.Column[str]) -> list[sa.Row[Any]]:
    rows = sa.select(*column.table.primary_key, column).where(column.is_not(None))
    return list(db.connection().execute(rows))


def _renew(column: sa.Column[Any], row: sa.Row[Any], unreadable: list[str]) -> int:
    key, stored = row[:-1], row[-1]
    try:
        new = crypto.reencrypt(stored)
    except InvalidToken:
        unreadable.append(_place(column, key))
        return 0
    if new is None:
        return 0
    # A secret that was changed meanwhile has the newest key already.
    change = _update(column).where(*_matches(column.table, key), column == stored)
    # Re-encryption is no change that users see, so updated_at stays.
    values = {column.name: new, "updated_at": column.table.c.updated_at}
    return int(db.connection().execute(change.values(values)).rowcount)
