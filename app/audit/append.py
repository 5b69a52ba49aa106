"""Appending to the chains: the last thing that a transaction does (contract section 7).

All that needs no lock is done first: salts and digests. Then the heads of the chains are locked in
the order of their accounts, so that two transactions never wait for each other in a circle, and
each entry is linked to the one before. On PostgreSQL one statement does that (`append_audit` of
migration 0005), or for many entries a COPY; on SQLite, where a writer is alone anyway, three for
each account.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime
from io import StringIO
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

import orjson

from app import actor, clock, config, db
from app.audit import digest
from app.audit.models import AuditEntry

CREATE, UPDATE, DELETE = "CREATE", "UPDATE", "DELETE"
HIDDEN = "***"
Value = tuple[str, str | None, str | None]  # column, old, new

COLUMNS = tuple(column.name for column in AuditEntry.__table__.columns)
_INSERT = (
    f"INSERT INTO audit_log ({', '.join(COLUMNS)})"  # noqa: S608 - names of our own columns
    f" VALUES ({', '.join('?' for name in COLUMNS)})"
)
_HEAD = (
    "SELECT (SELECT max(id) FROM audit_log), last_id, checksum"
    " FROM (SELECT 1) LEFT JOIN audit_heads ON account_id = ?"
)
_MOVE = (
    "INSERT INTO audit_heads (account_id, last_id, checksum, checkpoint_id, changed_at)"
    " VALUES (?, ?, ?, 0, ?) ON CONFLICT (account_id) DO UPDATE SET"
    " last_id = excluded.last_id, checksum = excluded.checksum, changed_at = excluded.changed_at"
)

MANY = 50
_OPEN = (
    "INSERT INTO audit_heads (account_id, last_id, checksum, checkpoint_id, changed_at)"
    " VALUES (%s, 0, %s, 0, %s) ON CONFLICT (account_id) DO NOTHING"
)
_LOCK = "SELECT checksum FROM audit_heads WHERE account_id = %s FOR UPDATE"
_IDS = "SELECT nextval('audit_log_ids') FROM generate_series(1, %s)"
_COPY = f"COPY audit_log ({', '.join(COLUMNS)}) FROM STDIN"
_MOVE_TO = (
    "UPDATE audit_heads SET last_id = %s, checksum = %s, changed_at = %s WHERE account_id = %s"
)
_ESCAPED = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})


class Change(NamedTuple):
    """What is to become one entry."""

    account_id: str
    operation: str
    table_name: str
    record_id: str
    column_name: str
    old_value: str | None
    new_value: str | None
    extra_metadata: Mapping[str, str | int] | None


def enabled() -> bool:
    """Whether changes are audited at all."""
    return config.current().audit_logging_enabled


def note(
    account_id: str,
    operation: str,
    table_name: str,
    record_id: str,
    values: Iterable[Value],
    extra_metadata: Mapping[str, str | int] | None = None,
) -> None:
    """Have the open transaction audit what happened to the columns of a row."""
    if enabled():
        place = (account_id, operation, table_name, record_id)
        changes = [Change(*place, *value, extra_metadata) for value in values]
        # Last of all, as the heads of the chains are locked from then on.
        db.before_commit(_append, *changes, last=True)


def text(value: Any) -> str | None:
    """A value as entries keep it: a text as it is, anything else as JSON."""
    if value is None or type(value) is str:
        return value
    if isinstance(value, datetime):
        return clock.iso(value)
    if isinstance(value, date):
        return value.isoformat()
    return orjson.dumps(value).decode()


def _append(changes: list[Change]) -> None:
    changes.sort(key=lambda change: change.account_id)  # stable: within an account as it happened
    entries = _with_digests(changes, actor.current(), clock.now())
    connection = db.connection()
    if connection.dialect.name == "sqlite":
        _append_alone(connection, entries)
    elif len(entries) >= MANY:
        _append_many(connection, entries)
    else:
        payload = orjson.dumps(entries).decode()
        connection.exec_driver_sql("SELECT append_audit(%s)", (payload,))


def _with_digests(
    changes: Sequence[Change], who: actor.Actor, moment: datetime
) -> list[dict[str, Any]]:
    same: dict[str, Any] = who._asdict()
    same["occurred_at"] = clock.iso(moment)
    same["es_timestamp"] = clock.iso(who.es_timestamp) if who.es_timestamp else None
    told = [same[name] for name in digest.ACTOR_COLUMNS]
    random = os.urandom(2 * digest.SALT_BYTES * len(changes)).hex()
    width = 2 * digest.SALT_BYTES
    entries = []
    for i, change in enumerate(changes):
        at = 2 * i * width
        salt, actor_salt = random[at : at + width], random[at + width : at + 2 * width]
        entry = change._asdict() | same
        entry["salt"], entry["actor_salt"] = salt, actor_salt
        entry["values_digest"] = digest.salted(salt, (change.old_value, change.new_value))
        entry["actor_digest"] = digest.salted(actor_salt, told)
        entry["entry_digest"] = digest.entry_digest(entry)
        entries.append(entry)
    return entries


def _append_alone(connection: Any, entries: Sequence[dict[str, Any]]) -> None:
    # The driver's own connection: the way through SQLAlchemy costs as much as the work.
    driver: sqlite3.Connection = connection.connection.driver_connection
    for account_id, chain in groupby(entries, key=itemgetter("account_id")):
        newest, last_id, previous = driver.execute(_HEAD, (account_id,)).fetchone()
        id, previous = max(newest or 0, last_id or 0), previous or digest.FIRST_PREVIOUS
        rows = []
        for entry in chain:
            id += 1
            previous = _link(entry, id, previous)
            rows.append([entry[name] for name in COLUMNS])
        driver.executemany(_INSERT, rows)
        driver.execute(_MOVE, (account_id, id, previous, entries[0]["occurred_at"]))


def _link(entry: dict[str, Any], id: int, previous: str) -> str:
    """Put an entry at its place of the chain, in the form in which it is stored."""
    entry["id"], entry["previous_hash"] = id, previous
    entry["checksum"] = digest.checksum(previous, id, entry["entry_digest"])
    if extra := entry["extra_metadata"]:
        entry["extra_metadata"] = orjson.dumps(extra).decode()
    return str(entry["checksum"])


def _append_many(connection: Any, entries: Sequence[dict[str, Any]]) -> None:
    """What `append_audit` does, for half of the database's work where entries are many."""
    with connection.connection.cursor() as cursor:
        for account_id, group in groupby(entries, key=itemgetter("account_id")):
            chain, moment = list(group), entries[0]["occurred_at"]
            cursor.execute(_OPEN, (account_id, digest.FIRST_PREVIOUS, moment))
            cursor.execute(_LOCK, (account_id,))
            (previous,) = cursor.fetchone()
            cursor.execute(_IDS, (len(chain),))
            ids = sorted(id for (id,) in cursor.fetchall())
            for entry, id in zip(chain, ids, strict=True):
                previous = _link(entry, id, previous)
            cursor.copy_expert(_COPY, StringIO("".join(map(_line, chain))))
            cursor.execute(_MOVE_TO, (ids[-1], previous, moment, account_id))


def _line(entry: Mapping[str, Any]) -> str:
    values = (entry[name] for name in COLUMNS)
    return "\t".join(["\\N" if v is None else str(v).translate(_ESCAPED) for v in values]) + "\n"
