"""Storing changes as they are, in the transaction that makes them: one statement, and no lock.

Their place in the chain and in the feed follows after the commit (`app/audit/sealing.py`).
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import date, datetime
from decimal import Decimal
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

import orjson

from app import clock, config, db
from app.audit.chain import digest
from app.context import actor
from app.context.actor import ActorKind
from app.ids import NIL
from app.jobs import wakeups

OPERATIONS = CREATE, UPDATE, DELETE = "CREATE", "UPDATE", "DELETE"
HIDDEN = "***"

NEWS = wakeups.Topic("changes", lock=0x41747269)
"""Accounts with new changes."""
LONGEST = 2**20
"""The length of a statement with several changes."""


class Change(NamedTuple):
    """A change of one row; each of its values becomes an entry."""

    account_id: str
    target: tuple[str, str, str]  # operation, table_name, record_id
    values: Sequence[digest.Value]
    extra_metadata: Mapping[str, str | int] | None = None
    occurred_at: datetime | None = None  # when the transaction ends
    unchanged: str | None = None  # of a record
    is_audited: bool = True  # else for the change feed only
    acting: actor.Actor | None = None  # None: whoever acts when the transaction ends


COLUMNS = (
    *("account_id", "operation", "table_name", "record_id", "occurred_at", "size"),
    *("columns", "old_values", "new_values", "unchanged", "user_id"),
    *("actor_kind", "actor_id", "actor_name"),
    *("user_email", "user_name", "ip_address", "user_agent", "request_id"),
    *("es_username", "es_reason", "es_timestamp", "extra_metadata", "salts", "actor_salts"),
    "digest_version",
)
PEOPLE = (ActorKind.USER, ActorKind.OPERATOR)
SIGNED = actor.Actor._fields.index("es_timestamp")
NOT_AUDITED = (None,) * (len(COLUMNS) - COLUMNS.index("user_email"))
_INTO = f"INSERT INTO audit_pending ({', '.join(COLUMNS)}"
_NEXT = "SELECT ifnull(max(id), 0) + 1 FROM audit_pending WHERE account_id = ?1"
_INSERT = f"{_INTO}, id) VALUES ({', '.join(f'?{n + 1}' for n in range(len(COLUMNS)))}, ({_NEXT}))"
_ROW = f"({', '.join(['%s'] * len(COLUMNS))})"
_FIRST = f"{_INTO}) VALUES {_ROW}"


def enabled() -> bool:
    """Whether auditing is switched on."""
    return config.current().audit_logging_enabled


def record(change: Change, *, always: bool = False) -> None:
    """Record a change at the end of the open transaction; `always`: even if auditing is off."""
    if change.values and (always or enabled()):
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
        change = Change(account_id, target, values, None, occurred_at, unchanged, enabled())
        db.before_commit(_append, change, last=True)


@contextmanager
def by_current_actor() -> Iterator[None]:
    """Record the changes of the block, part of a transaction, as of the actor inside the block.

    Blocks within it have actors of their own.
    """
    acting = actor.current()
    changes = db.pending(_append, last=True)
    start = len(changes)
    yield
    changes[start:] = [one._replace(acting=one.acting or acting) for one in changes[start:]]


@contextmanager
def with_creations(unchanged: Mapping[str, str]) -> Iterator[None]:
    """Have the creations of the block store these further values, by the ids of their records."""
    changes = db.pending(_append, last=True)
    start = len(changes)
    yield
    changes[start:] = [
        one._replace(unchanged=unchanged.get(one.target[2])) if one.target[0] == CREATE else one
        for one in changes[start:]
    ]


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
    if isinstance(value, Decimal):
        return format(value, "f")
    return orjson.dumps(value).decode()


def _append(changes: list[Change]) -> None:
    rows = list(_rows(changes))
    rows.sort(key=itemgetter(0))  # stable: keeps the order within an account
    with db.driver() as driver:
        if isinstance(driver, sqlite3.Connection):
            driver.executemany(_INSERT, rows)
        else:
            with closing(driver.cursor()) as cursor:
                # No statement names two accounts. The result is not needed, so the last one travels
                # with the commit.
                for _, own in groupby(rows, itemgetter(0)):
                    values, size = list[bytes](), 0
                    for row in own:
                        values.append(cursor.mogrify(f", {_ROW}" if values else _FIRST, row))
                        size += len(values[-1])
                        if size > LONGEST:
                            driver.defer(values[0] + b"".join(values[1:]))
                            driver.flush_deferred()
                            values, size = [], 0
                    if values:
                        driver.defer(values[0] + b"".join(values[1:]))
    for account_id in {row[0] for row in rows}:
        db.on_commit(wakeups.News(NEWS, account_id))


def _rows(changes: Sequence[Change]) -> Iterator[tuple[Any, ...]]:
    current = actor.source.get()()  # `actor.current()`, a module less on the way of each write
    now = clock.now()
    for own, part in groupby(changes, attrgetter("acting")):
        acting = own or current
        signed_at = clock.iso(acting.es_timestamp) if acting.es_timestamp else None
        signing = {"es_method": acting.es_method} if acting.es_method else {}
        for account_id, target, values, about, moment, unchanged, is_audited, _ in part:
            texts = stored_values(values)
            size = sum(len(text) for text in (*texts, unchanged) if text)
            change = (account_id, *target, clock.iso(moment or now), size, *texts, unchanged)
            if not is_audited:
                kind, id, name = _named(acting, account_id)
                name = None if kind in PEOPLE else name
                yield (*change, acting.user_id, kind, id, name, *NOT_AUDITED)
                continue
            metadata = {**about, **signing} if about else signing
            if acting.portal is not None:
                metadata = {**metadata, "portal": acting.portal}
            extra = digest.canonical(metadata).decode() if metadata else None
            random = os.urandom(digest.SALT_BYTES * (len(values) + 1))
            salts, actor_salt = random[digest.SALT_BYTES :], random[: digest.SALT_BYTES]
            who = (acting.user_id, *_named(acting, account_id), *acting[1:SIGNED])
            yield (*change, *who, signed_at, extra, salts, actor_salt, digest.VERSION)


def _named(acting: actor.Actor, account_id: str) -> tuple[str, str, str | None]:
    # As `Actor.named`, a module less on the way of each write.
    kind = acting.kind or ActorKind.USER
    if kind is ActorKind.OPERATOR and account_id == NIL:
        kind = ActorKind.USER
    if acting.id is None:
        return kind.value, acting.user_id, acting.user_name
    return kind.value, acting.id, acting.name


def stored_values(values: Sequence[digest.Value]) -> tuple[str, str | None, str | None]:
    """The JSON arrays of column names, old values and new values; null for values that all are."""
    columns, olds, news = zip(*values, strict=True)
    return orjson.dumps(columns).decode(), _array(olds), _array(news)


def _array(values: Sequence[str | None]) -> str | None:
    return orjson.dumps(values).decode() if any(value is not None for value in values) else None
