"""Appending to the chains: the last thing that a transaction does (contract section 7).

All that needs no lock is done first: salts and digests. Then `insert` locks the heads of the
chains, links each entry to the one before, and writes them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

import orjson

from app import clock, config, db
from app.audit import digest, insert
from app.context import actor

CREATE, UPDATE, DELETE = "CREATE", "UPDATE", "DELETE"
HIDDEN = "***"
PLACE = ("operation", "table_name", "record_id")
Value = tuple[str, str | None, str | None]  # column, old, new


class Change(NamedTuple):
    """What happened to a row: each of the values is to become one entry."""

    account_id: str
    place: tuple[str, str, str]  # operation, table_name, record_id
    values: Sequence[Value]
    extra_metadata: Mapping[str, str | int] | None
    at: datetime | None  # None: when the transaction ends


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
    *,
    at: datetime | None = None,
    always: bool = False,
) -> None:
    """Have the open transaction audit what happened to the columns of a row, if anything did.

    `at` is when, where the row itself says so, too; `always` also where auditing is off.
    """
    if (always or enabled()) and (told := list(values)):
        change = Change(account_id, (operation, table_name, record_id), told, extra_metadata, at)
        # Last of all, as the heads of the chains are locked from then on.
        db.before_commit(_append, change, last=True)


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
    told, now = _told(actor.current()), clock.now()
    account_of = attrgetter("account_id")
    changes.sort(key=account_of)  # stable: within an account as it happened
    chains = [(id, _entries(group, told, now)) for id, group in groupby(changes, account_of)]
    insert.all_of(chains, told)


def _told(who: actor.Actor) -> insert.Told:
    signed_at = clock.iso(who.es_timestamp) if who.es_timestamp else None
    return insert.Told._make((*who[:-1], signed_at))


def _entries(changes: Iterable[Change], told: insert.Told, now: datetime) -> list[insert.Entry]:
    same = told._asdict()
    entries: list[insert.Entry] = []
    for account_id, place, values, extra, at in changes:
        occurred_at = clock.iso(at or now)
        shared = {**same, **dict(zip(PLACE, place, strict=True))}
        shared |= {"extra_metadata": extra, "occurred_at": occurred_at}
        digests_of = digest.Stencil(account_id, shared).digests
        then = (digest.canonical(extra).decode() if extra else None, occurred_at)
        for value, (salt, actor_salt) in zip(values, _salts(len(values)), strict=True):
            values_digest, actor_digest, entry_digest = digests_of(value, salt, actor_salt)
            hashes = (salt, values_digest, actor_salt, actor_digest, entry_digest)
            entries.append(insert.Entry._make(place + value + then + hashes))
    return entries


def _salts(count: int) -> list[tuple[str, str]]:
    width = 2 * digest.SALT_BYTES
    random = os.urandom(width * count).hex()
    middles = range(width, len(random), 2 * width)
    return [(random[at - width : at], random[at : at + width]) for at in middles]
