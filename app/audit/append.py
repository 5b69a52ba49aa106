"""Appending entries to the chains, as the last step of a transaction (contract section 7).

Salts and digests are computed first, without locks. Then `insert` locks the chain heads, links the
entries to the previous ones, and writes one row for each change.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

import orjson

from app import clock, config, db
from app.audit import insert
from app.audit.chain import digest
from app.context import actor

OPERATIONS = CREATE, UPDATE, DELETE = "CREATE", "UPDATE", "DELETE"
HIDDEN = "***"
TARGET_COLUMNS = ("operation", "table_name", "record_id")


class Change(NamedTuple):
    """A change of one row; each of its values becomes an entry."""

    account_id: str
    target: tuple[str, str, str]  # operation, table_name, record_id
    values: Sequence[digest.Value]
    extra_metadata: Mapping[str, str | int] | None
    occurred_at: datetime | None  # None: when the transaction ends
    unchanged: str | None = None  # of a record


def enabled() -> bool:
    """Whether auditing is switched on."""
    return config.current().audit_logging_enabled


def record(
    account_id: str,
    operation: str,
    table_name: str,
    record_id: str,
    values: Iterable[digest.Value],
    extra_metadata: Mapping[str, str | int] | None = None,
    *,
    occurred_at: datetime | None = None,
    always: bool = False,
) -> None:
    """Record changed columns of a row at the end of the open transaction.

    `occurred_at` defaults to the commit time; `always` records even if auditing is off.
    """
    if (always or enabled()) and (changed := list(values)):
        change = Change(
            account_id, (operation, table_name, record_id), changed, extra_metadata, occurred_at
        )
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
    if isinstance(value, datetime):
        return clock.iso(value)
    if isinstance(value, date):
        return value.isoformat()
    return orjson.dumps(value).decode()


def _append(changes: list[Change]) -> None:
    acting = actor.source.get()()  # `actor.current()`, a module less on the way of each write
    columns, now = _actor_columns(acting), clock.now()
    account_of = attrgetter("account_id")
    changes.sort(key=account_of)  # stable: keeps the order within an account
    signing = {"es_method": acting.es_method} if acting.es_method else {}
    chains = [
        (id, _prepared(group, columns, now, signing)) for id, group in groupby(changes, account_of)
    ]
    insert.insert_chains(chains, columns)


def _append_to_feed(changes: list[Change]) -> None:
    now, user_id = clock.now(), actor.current().user_id
    changes.sort(key=attrgetter("account_id"))
    rows = [
        insert.FeedRow(
            *(change.account_id, *change.target, user_id, clock.iso(change.occurred_at or now)),
            *(_size(texts := stored_values(change.values), change.unchanged), *texts),
            change.unchanged,
        )
        for change in changes
    ]
    insert.insert_feed_changes(rows)


def _actor_columns(acting: actor.Actor) -> insert.ActorColumns:
    signed_at = clock.iso(acting.es_timestamp) if acting.es_timestamp else None
    return insert.ActorColumns(*acting[:-2], signed_at)


def _prepared(
    changes: Iterable[Change],
    actor_columns: insert.ActorColumns,
    now: datetime,
    signing: Mapping[str, str],
) -> list[insert.Prepared]:
    common = actor_columns._asdict()
    prepared: list[insert.Prepared] = []
    for account_id, target, values, about, moment, unchanged in changes:
        metadata = {**about, **signing} if about else signing or None
        occurred_at = clock.iso(moment or now)
        shared = {**common, **dict(zip(TARGET_COLUMNS, target, strict=True))}
        shared |= {"extra_metadata": metadata, "occurred_at": occurred_at}
        random = os.urandom(digest.SALT_BYTES * (len(values) + 1))
        salts, actor_salt = random[digest.SALT_BYTES :], random[: digest.SALT_BYTES]
        digests = digest.EntryDigester(account_id, shared).digests(values, salts, actor_salt)
        extra = digest.canonical(metadata).decode() if metadata else None
        names, olds, news = texts = stored_values(values)
        of_record = (*target, extra, occurred_at)
        prepared.append(
            insert.Prepared(
                *of_record,
                names,
                olds,
                news,
                unchanged,
                _size(texts, unchanged),
                salts,
                actor_salt,
                digests,
            )
        )
    return prepared


def _size(texts: Sequence[str | None], unchanged: str | None) -> int:
    return sum(len(text) for text in (*texts, unchanged) if text)


def stored_values(values: Sequence[digest.Value]) -> tuple[str, str | None, str | None]:
    """The JSON arrays of column names, old values and new values; null for values that all are."""
    columns, olds, news = zip(*values, strict=True)
    return orjson.dumps(columns).decode(), _array(olds), _array(news)


def _array(values: Sequence[str | None]) -> str | None:
    return orjson.dumps(values).decode() if any(value is not None for value in values) else None
