"""Writing prepared entries: locks the heads and links the entries (contract section 7).

Chains are locked in order of their accounts, which prevents deadlocks. PostgreSQL takes one
statement (`append_audit_change` of migration 0020), or a COPY for many entries; SQLite, which has
a single writer, takes four statements per account. Each change is also written to
`audit_changes`, by which lists find its entries.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, nullcontext
from io import StringIO
from itertools import groupby, islice
from operator import itemgetter
from typing import Any, NamedTuple

from psycopg2.extensions import AsIs

from app import db
from app.audit import digest
from app.context import tenancy


class ActorColumns(NamedTuple):
    """The stored columns that all entries of a transaction share."""

    user_id: str
    user_email: str | None
    user_name: str | None
    ip_address: str | None
    user_agent: str | None
    request_id: str | None
    es_username: str | None
    es_reason: str | None
    es_timestamp: str | None


class Entry(NamedTuple):
    """The stored columns of one entry, without its position in the chain."""

    operation: str
    table_name: str
    record_id: str
    column_name: str
    old_value: str | None
    new_value: str | None
    extra_metadata: str | None
    occurred_at: str
    salt: str
    values_digest: str
    actor_salt: str
    actor_digest: str
    entry_digest: str


Chain = tuple[str, Sequence[Entry]]  # account, its new entries
HASHES = Entry._fields.index("salt")  # from here on nothing needs escaping
VALUES = slice(Entry._fields.index("column_name"), Entry._fields.index("extra_metadata"))
COPY_THRESHOLD = 50
CHANGE_COLUMNS = ("operation", "table_name", "record_id", "extra_metadata", "occurred_at")
_change_key = itemgetter(*(Entry._fields.index(name) for name in CHANGE_COLUMNS))
LINE = 800  # the approximate length of a row

_COLUMNS = (*Entry._fields, "id", "previous_hash", "checksum", "account_id", *ActorColumns._fields)
_INTO = f"audit_log ({', '.join(_COLUMNS)})"
_INSERT = f"INSERT INTO {_INTO} VALUES ({', '.join('?' for name in _COLUMNS)})"  # noqa: S608
_CHANGES_INTO = (
    "audit_changes (account_id, first_id, last_id, entries,"
    " operation, table_name, record_id, user_id, occurred_at)"
)
_CHANGE = f"INSERT INTO {_CHANGES_INTO} VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"  # noqa: S608
_HEAD = (
    # The last row has the highest id: there is a single writer, and rows are never deleted.
    "SELECT (SELECT id FROM audit_log ORDER BY rowid DESC LIMIT 1), last_id, checksum"
    " FROM (SELECT 1) LEFT JOIN audit_heads ON account_id = ?"
)
_MOVE = (
    "INSERT INTO audit_heads (account_id, last_id, listed_id, checksum, checkpoint_id, changed_at)"
    " VALUES (?1, ?2, ?2, ?3, 0, ?4) ON CONFLICT (account_id) DO UPDATE SET last_id = ?2,"
    " listed_id = ?2, checksum = ?3, changed_at = ?4"
)

_APPEND = f"SELECT append_audit_change({', '.join(['%s'] * 6)})"
_LOCK = "SELECT lock_audit_head(%s, %s)"
_IDS = "SELECT array_agg(nextval('audit_log_ids')) FROM generate_series(1, %s)"
_COPY = f"COPY {_INTO} FROM STDIN"
_COPY_CHANGES = f"COPY {_CHANGES_INTO} FROM STDIN"
_MOVE_TO = (
    "UPDATE audit_heads SET last_id = %s, listed_id = %s, checksum = %s, changed_at = %s"
    " WHERE account_id = %s"
)
_SPECIAL = re.compile(r"[\\\t\n\r]")
_ESCAPED = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})


def insert_chains(chains: Sequence[Chain], actor: ActorColumns) -> None:
    """Write the new entries of chains, sorted by account."""
    few = sum(len(entries) for account_id, entries in chains) < COPY_THRESHOLD
    # PostgreSQL's COPY into tables with row policies needs their owner. Uses the driver directly,
    # as SQLAlchemy would double the cost.
    with nullcontext() if few else tenancy.as_owner(), db.driver() as driver:
        if isinstance(driver, sqlite3.Connection):
            for account_id, entries in chains:
                _insert_sqlite(driver, account_id, entries, actor)
            return
        with closing(driver.cursor()) as cursor:
            if few:
                _insert_few(cursor, chains, actor)
                return
            for account_id, entries in chains:
                _copy(cursor, account_id, entries, actor)


def _insert_sqlite(
    driver: sqlite3.Connection, account_id: str, entries: Sequence[Entry], actor: ActorColumns
) -> None:
    newest, last_id, previous = driver.execute(_HEAD, (account_id,)).fetchone()
    newest = max(newest or 0, last_id or 0)
    ids = range(newest + 1, newest + 1 + len(entries))
    links = list(_links(previous or digest.FIRST_PREVIOUS, ids, entries))
    suffix = (account_id, *actor)
    driver.executemany(
        _INSERT, [entry + link + suffix for entry, link in zip(entries, links, strict=True)]
    )
    driver.executemany(_CHANGE, _changes(account_id, ids, entries, actor))
    driver.execute(_MOVE, (account_id, ids[-1], links[-1][-1], entries[-1].occurred_at))


def _changes(
    account_id: str, ids: Sequence[int], entries: Sequence[Entry], actor: ActorColumns
) -> Iterator[tuple[object, ...]]:
    position = 0
    for (*target, _, occurred_at), group in groupby(entries, _change_key):
        first, count = ids[position], sum(1 for _ in group)
        position += count
        yield account_id, first, ids[position - 1], count, *target, actor.user_id, occurred_at


def _links(
    previous: str, ids: Iterable[int], entries: Sequence[Entry]
) -> Iterator[tuple[int, str, str]]:
    for id, entry in zip(ids, entries, strict=True):
        checksum = digest.checksum(previous, id, entry.entry_digest)
        yield id, previous, checksum
        previous = checksum


def _insert_few(cursor: Any, chains: Sequence[Chain], actor: ActorColumns) -> None:
    # The result is not needed, so the statement travels with the commit.
    cursor.connection.defer(cursor.mogrify(*calls(chains, actor)))


def calls(chains: Sequence[Chain], actor: ActorColumns) -> tuple[str, Sequence[Any]]:
    """The PostgreSQL statement that writes these entries, and its parameters."""
    calls, parameters = [], list[Any]()
    for account_id, entries in chains:
        for target, change in groupby(entries, _change_key):
            columns = list(zip(*change, strict=True))
            # Hexadecimal digits need no escaping by the driver, and are most of the text.
            hashes = AsIs(f"'{','.join(map(','.join, columns[HASHES:]))}'")
            arrays = map(_array, columns[VALUES])
            parameters += (account_id, _array(target + actor), hashes, *arrays)
            calls.append(_APPEND)
    return "; ".join(calls), parameters


def _array(values: Iterable[str | None]) -> str:
    # The driver would turn a list into one expression per element, which is slower.
    return f"{{{','.join(['NULL' if text is None else _quoted(text) for text in values])}}}"


def _quoted(text: str) -> str:
    if '"' in text or "\\" in text:
        text = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'


def _copy(cursor: Any, account_id: str, entries: Sequence[Entry], actor: ActorColumns) -> None:
    """Like `append_audit_change`, at half the cost for many entries."""
    cursor.execute(_LOCK, (account_id, entries[-1].occurred_at))
    (previous,) = cursor.fetchone()
    # Ids are drawn under the head's lock, so that they ascend along the chain.
    cursor.execute(_IDS, (len(entries),))
    ids = sorted(cursor.fetchone()[0])
    lines = _Lines(previous, ids, entries, (account_id, *actor))
    cursor.copy_expert(_COPY, lines)
    changes = _changes(account_id, ids, entries, actor)
    cursor.copy_expert(_COPY_CHANGES, StringIO("".join(map(_line, changes))))
    head = (ids[-1], ids[-1], lines.checksum, entries[-1].occurred_at, account_id)
    cursor.execute(_MOVE_TO, head)


def _line(values: Iterable[object]) -> str:
    return "\t".join([_escaped(str(value)) for value in values]) + "\n"


class _Lines:
    """A file object of rows for COPY, generated while the database stores earlier rows."""

    def __init__(
        self, previous: str, ids: Iterable[int], entries: Sequence[Entry], end: Sequence[str | None]
    ) -> None:
        self.checksum = previous
        self._end = "\t".join(map(_escaped, end)) + "\n"
        self._lines = self._made(_links(previous, ids, entries), entries)

    def read(self, size: int) -> str:
        """The next lines, about `size` characters."""
        return "".join(islice(self._lines, max(1, size // LINE)))

    def _made(
        self, links: Iterable[tuple[int, str, str]], entries: Sequence[Entry]
    ) -> Iterator[str]:
        for entry, (id, previous, self.checksum) in zip(entries, links, strict=True):
            texts: list[Any] = ["\\N" if text is None else text for text in entry]
            if _SPECIAL.search("".join(filter(None, entry[:HASHES]))):  # rare
                texts[:HASHES] = map(_escaped, entry[:HASHES])
            texts += (str(id), previous, self.checksum, self._end)
            yield "\t".join(texts)


def _escaped(value: str | None) -> str:
    if value is None:
        return "\\N"
    return value.translate(_ESCAPED) if _SPECIAL.search(value) else value
