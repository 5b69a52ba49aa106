"""Appending entries to the chains, as the last step of a transaction.

Salts and digests are computed first, without locks. Then the chain heads are locked, the entries
linked to the previous ones, and one row is written for each change. Chains are locked in order of
their accounts, which prevents deadlocks. PostgreSQL takes one statement (`append_audit_change` of
migration 0030), or a COPY for many changes; SQLite, which has a single writer, takes three
statements per account.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from datetime import date, datetime
from itertools import groupby, islice
from operator import attrgetter
from typing import Any, NamedTuple

import orjson
from psycopg2.extensions import AsIs

from app import clock, config, db
from app.audit.chain import digest
from app.context import actor, tenancy

OPERATIONS = CREATE, UPDATE, DELETE = "CREATE", "UPDATE", "DELETE"
HIDDEN = "***"
TARGET_COLUMNS = ("operation", "table_name", "record_id")


class Change(NamedTuple):
    """A change of one row; each of its values becomes an entry."""

    account_id: str
    target: tuple[str, str, str]  # operation, table_name, record_id
    values: Sequence[digest.Value]
    extra_metadata: Mapping[str, str | int] | None = None
    occurred_at: datetime | None = None  # when the transaction ends
    unchanged: str | None = None  # of a record


class ActorColumns(NamedTuple):
    """The stored columns that all changes of a transaction share."""

    user_id: str
    user_email: str | None
    user_name: str | None
    ip_address: str | None
    user_agent: str | None
    request_id: str | None
    es_username: str | None
    es_reason: str | None
    es_timestamp: str | None


class Prepared(NamedTuple):
    """The stored columns of a change, and its entries' digests, without its place in the chain."""

    operation: str
    table_name: str
    record_id: str
    extra_metadata: str | None
    occurred_at: str
    columns: str
    old_values: str | None
    new_values: str | None
    unchanged: str | None
    size: int
    salts: bytes
    actor_salts: bytes
    digests: Sequence[str]


class FeedRow(NamedTuple):
    """The stored columns of a change that is not audited, without its number."""

    account_id: str
    operation: str
    table_name: str
    record_id: str
    user_id: str
    occurred_at: str
    size: int
    columns: str
    old_values: str | None
    new_values: str | None
    unchanged: str | None


class Place(NamedTuple):
    """The stored columns of a change that follow from its place in the chain."""

    first_id: int
    last_id: int
    entries: int
    ids: str | None
    checksum: bytes


Chain = tuple[str, Sequence[Prepared]]  # account, its new changes
OWN = Prepared._fields[:-1]
COPY_THRESHOLD = 10
LINE = 600  # the approximate length of a row

_COLUMNS = ("account_id", *OWN, *Place._fields, *ActorColumns._fields)
_INTO = f"audit_changes ({', '.join(_COLUMNS)})"
_INSERT = f"INSERT INTO {_INTO} VALUES ({', '.join('?' for name in _COLUMNS)})"  # noqa: S608
_HEAD = (
    # The last rows have the highest numbers, as there is a single writer, or newer ones expired.
    "SELECT max(ifnull((SELECT last_id FROM audit_changes ORDER BY rowid DESC LIMIT 1), 0),"
    " ifnull((SELECT change FROM feed_changes ORDER BY rowid DESC LIMIT 1), 0),"
    " ifnull((SELECT max(first_change) FROM feed_generations), 0),"
    " ifnull(last_id, 0), ifnull(expired_change, 0)), checksum"
    " FROM (SELECT 1) LEFT JOIN audit_heads ON account_id = ?"
)
_INSERT_FEED = (
    f"INSERT INTO feed_changes (change, {', '.join(FeedRow._fields)})"  # noqa: S608
    f" VALUES ({', '.join('?' * (1 + len(FeedRow._fields)))})"
)
_START = (
    "INSERT INTO audit_heads (account_id, last_id, checksum, checkpoint_id, changed_at)"
    " VALUES (?, 0, ?, 0, ?) ON CONFLICT (account_id) DO NOTHING"
)
_MOVE = (
    "INSERT INTO audit_heads (account_id, last_id, checksum, checkpoint_id, changed_at)"
    " VALUES (?1, ?2, ?3, 0, ?4) ON CONFLICT (account_id) DO UPDATE SET last_id = ?2,"
    " checksum = ?3, changed_at = ?4"
)

_APPEND = f"SELECT append_audit_change({', '.join(['%s'] * 10)})"
_APPEND_FEED = f"SELECT append_feed_change({', '.join(['%s'] * len(FeedRow._fields))})"
_FEED_COLUMNS = ("change", *FeedRow._fields)
_COPY_FEED = f"COPY feed_changes ({', '.join(_FEED_COLUMNS)}) FROM STDIN"
_LOCK = "SELECT lock_audit_head(%s, %s)"
_IDS = "SELECT array_agg(nextval('audit_log_ids')) FROM generate_series(1, %s)"
_COPY = f"COPY {_INTO} FROM STDIN"
_MOVE_TO = (
    "UPDATE audit_heads SET last_id = %s, checksum = %s, changed_at = %s WHERE account_id = %s"
)
_SPECIAL = re.compile(r"[\\\t\n\r]")
_ESCAPED = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})


def enabled() -> bool:
    """Whether auditing is switched on."""
    return config.current().audit_logging_enabled


def record(change: Change, *, always: bool = False) -> None:
    """Record a change at the end of the open transaction; `always`: even if auditing is off."""
    if change.values and (always or enabled()):
        # Last, as the heads of the chains are locked from then on.
        db.before_commit(_append, change, last=True)


def record_of_collection(
    account_id: str,
    target: tuple[str, str, str],
    values: Sequence[digest.Value],
    occurred_at: datetime | None,
    unchanged: str | None,
) -> None:
    """Record changed columns of a record; if auditing is off, for the change feed only."""
    if values:
        change = Change(account_id, target, values, None, occurred_at, unchanged)
        db.before_commit(_append if enabled() else _append_to_feed, change, last=True)


def text(value: object) -> str | None:
    """A value as stored in entries: strings as they are, anything else as JSON."""
    if value is None or type(value) is str:
        return value
    if isinstance(value, str):  # of an enumeration
        return str(value)
    if isinstance(value, datetime):
        return clock.iso(value)
    if isinstance(value, date):
        return value.isoformat()
    return orjson.dumps(value).decode()


def _append(changes: list[Change]) -> None:
    acting = actor.source.get()()  # `actor.current()`, a module less on the way of each write
    signed_at = clock.iso(acting.es_timestamp) if acting.es_timestamp else None
    columns, now = ActorColumns(*acting[:-2], signed_at), clock.now()
    account_of = attrgetter("account_id")
    changes.sort(key=account_of)  # stable: keeps the order within an account
    signing = {"es_method": acting.es_method} if acting.es_method else {}
    chains = [
        (id, _prepared(group, columns, now, signing)) for id, group in groupby(changes, account_of)
    ]
    insert_chains(chains, columns)


def _append_to_feed(changes: list[Change]) -> None:
    now, user_id = clock.now(), actor.current().user_id
    changes.sort(key=attrgetter("account_id"))
    rows = [
        FeedRow(
            *(change.account_id, *change.target, user_id, clock.iso(change.occurred_at or now)),
            *(_size(texts := stored_values(change.values), change.unchanged), *texts),
            change.unchanged,
        )
        for change in changes
    ]
    insert_feed_changes(rows)


def _prepared(
    changes: Iterable[Change],
    actor_columns: ActorColumns,
    now: datetime,
    signing: Mapping[str, str],
) -> list[Prepared]:
    common = actor_columns._asdict()
    prepared: list[Prepared] = []
    for account_id, target, values, about, moment, unchanged in changes:
        metadata = {**about, **signing} if about else signing or None
        occurred_at = clock.iso(moment or now)
        shared = {**common, **dict(zip(TARGET_COLUMNS, target, strict=True))}
        shared |= {"extra_metadata": metadata, "occurred_at": occurred_at}
        random = os.urandom(digest.SALT_BYTES * (len(values) + 1))
        salts, actor_salt = random[digest.SALT_BYTES :], random[: digest.SALT_BYTES]
        digests = digest.EntryDigester(account_id, shared).digests(values, salts, actor_salt)
        extra = digest.canonical(metadata).decode() if metadata else None
        texts = stored_values(values)
        place, size = (*target, extra, occurred_at), _size(texts, unchanged)
        prepared.append(Prepared(*place, *texts, unchanged, size, salts, actor_salt, digests))
    return prepared


def _size(texts: Sequence[str | None], unchanged: str | None) -> int:
    return sum(len(text) for text in (*texts, unchanged) if text)


def stored_values(values: Sequence[digest.Value]) -> tuple[str, str | None, str | None]:
    """The JSON arrays of column names, old values and new values; null for values that all are."""
    columns, olds, news = zip(*values, strict=True)
    return orjson.dumps(columns).decode(), _array(olds), _array(news)


def _array(values: Sequence[str | None]) -> str | None:
    return orjson.dumps(values).decode() if any(value is not None for value in values) else None


def insert_chains(chains: Sequence[Chain], actor: ActorColumns) -> None:
    """Write the new changes of chains, sorted by account."""
    few = sum(len(changes) for account_id, changes in chains) < COPY_THRESHOLD
    # PostgreSQL's COPY into tables with row policies needs their owner. Uses the driver directly,
    # as SQLAlchemy would double the cost.
    with nullcontext() if few else tenancy.as_owner(), db.driver() as driver:
        if isinstance(driver, sqlite3.Connection):
            for account_id, changes in chains:
                _insert_sqlite(driver, account_id, changes, actor)
            return
        with closing(driver.cursor()) as cursor:
            if few or cursor.connection.is_sharded:
                # The result is not needed, so the statement travels with the commit.
                cursor.connection.defer(cursor.mogrify(*calls(chains, actor)))
                return
            for account_id, changes in chains:
                _copy(cursor, account_id, changes, actor)


def _insert_sqlite(
    driver: sqlite3.Connection, account_id: str, changes: Sequence[Prepared], actor: ActorColumns
) -> None:
    newest, previous = driver.execute(_HEAD, (account_id,)).fetchone()
    ids = range(newest + 1, newest + 1 + _count(changes))
    places = list(_places(previous or digest.FIRST_PREVIOUS, ids, changes))
    rows = [
        (account_id, *change[:-1], *place, *actor)
        for change, place in zip(changes, places, strict=True)
    ]
    driver.executemany(_INSERT, rows)
    end = places[-1]
    moved = (account_id, end.last_id, end.checksum.hex(), changes[-1].occurred_at)
    driver.execute(_MOVE, moved)


def insert_feed_changes(rows: Sequence[FeedRow]) -> None:
    """Write changes that are not audited, sorted by account."""
    few = len(rows) < COPY_THRESHOLD
    with nullcontext() if few else tenancy.as_owner(), db.driver() as driver:
        if isinstance(driver, sqlite3.Connection):
            for account_id, group in groupby(rows, attrgetter("account_id")):
                newest, _ = driver.execute(_HEAD, (account_id,)).fetchone()
                numbered = ((newest + n, *row) for n, row in enumerate(group, 1))
                driver.executemany(_INSERT_FEED, numbered)
                driver.execute(_START, (account_id, digest.FIRST_PREVIOUS, rows[-1].occurred_at))
            return
        with closing(driver.cursor()) as cursor:
            if few or cursor.connection.is_sharded:
                statement = "; ".join([_APPEND_FEED] * len(rows))
                parameters = [value for row in rows for value in row]
                cursor.connection.defer(cursor.mogrify(statement, parameters))
                return
            for account_id, group in groupby(rows, attrgetter("account_id")):
                own = list(group)
                cursor.execute(_LOCK, (account_id, own[-1].occurred_at))
                cursor.execute(_IDS, (len(own),))
                numbers = sorted(cursor.fetchone()[0])
                lines = (_line((n, *row)) for n, row in zip(numbers, own, strict=True))
                cursor.copy_expert(_COPY_FEED, _File(lines))


def _count(changes: Iterable[Prepared]) -> int:
    return sum([len(change.digests) for change in changes])


def _places(previous: str, ids: Sequence[int], changes: Iterable[Prepared]) -> Iterator[Place]:
    """The places of changes that follow each other; `ids` are those of all their entries."""
    position = 0
    for change in changes:
        own = ids[position : position + len(change.digests)]
        position += len(own)
        *_, previous = digest.checksums(previous, own, change.digests)
        yield Place(own[0], own[-1], len(own), stored_ids(own), bytes.fromhex(previous))


def stored_ids(ids: Sequence[int]) -> str | None:
    """The ids of a change's entries as stored: nothing if they are consecutive."""
    consecutive = ids[-1] - ids[0] == len(ids) - 1
    return None if consecutive else orjson.dumps(list(ids)).decode()


def calls(chains: Sequence[Chain], actor: ActorColumns) -> tuple[str, Sequence[Any]]:
    """The PostgreSQL statement that writes these changes, and its parameters."""
    calls, parameters = [], list[Any]()
    for account_id, changes in chains:
        for change in changes:
            shared = (*change[:3], change.extra_metadata, change.occurred_at, *actor)
            # Hexadecimal digits need no escaping by the driver.
            digests = AsIs(f"'{','.join(change.digests)}'")
            salts = (AsIs(f"'\\x{salt.hex()}'") for salt in (change.salts, change.actor_salts))
            # The driver would turn a list into one expression per element, which is slower.
            array = ["NULL" if text is None else _quoted(text) for text in shared]
            values = (change.columns, change.old_values, change.new_values)
            parameters += (account_id, f"{{{','.join(array)}}}", digests, *values, *salts)
            parameters += (change.unchanged, change.size)
            calls.append(_APPEND)
    return "; ".join(calls), parameters


def _quoted(text: str) -> str:
    if '"' in text or "\\" in text:
        text = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'


def _copy(cursor: Any, account_id: str, changes: Sequence[Prepared], actor: ActorColumns) -> None:
    """Like `append_audit_change`, at half the cost for many changes."""
    cursor.execute(_LOCK, (account_id, changes[-1].occurred_at))
    (previous,) = cursor.fetchone()
    # Ids are drawn under the head's lock, so that they ascend along the chain.
    cursor.execute(_IDS, (_count(changes),))
    ids = sorted(cursor.fetchone()[0])
    places = list(_places(previous, ids, changes))
    lines = (
        _line((account_id, *change[:-1], *place, *actor))
        for change, place in zip(changes, places, strict=True)
    )
    cursor.copy_expert(_COPY, _File(lines))
    end = places[-1]
    head = (end.last_id, end.checksum.hex(), changes[-1].occurred_at, account_id)
    cursor.execute(_MOVE_TO, head)


class _File:
    """A file object of lines for COPY, made while the database stores earlier ones."""

    def __init__(self, lines: Iterator[str]) -> None:
        self._lines = lines

    def read(self, size: int) -> str:
        """The next lines, about `size` characters."""
        return "".join(islice(self._lines, max(1, size // LINE)))


def _line(values: Iterable[object]) -> str:
    return "\t".join(map(_copied, values)) + "\n"


def _copied(value: object) -> str:
    if value is None:
        return "\\N"
    if isinstance(value, bytes):
        return f"\\\\x{value.hex()}"
    text = str(value)
    return text.translate(_ESCAPED) if _SPECIAL.search(text) else text
