"""Recording changes: a row for each, in the transaction that makes it.

It takes no lock and has no digest: after the commit, `app/audit/sealing.py` gives changes their
places in the chain and in the change feed (docs/adr/0061).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

import orjson
import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler

from app import clock, config, db
from app.audit.chain import digest
from app.audit.models import PendingChange
from app.context import actor, tenancy
from app.db import Base
from app.db.prepared import PreparedStatement
from app.db.types import Text
from app.jobs import wakeups
from app.types import JSONObject

OPERATIONS = CREATE, UPDATE, DELETE = "CREATE", "UPDATE", "DELETE"
HIDDEN = "***"
FEW = 3
NEWS = wakeups.Topic("changes", lock=0x41747269)
"""Accounts with changes that were committed a moment ago."""
PENDING = Base.metadata.tables[PendingChange.__tablename__]


class Change(NamedTuple):
    """A change of one row; each of its values becomes an entry."""

    account_id: str
    target: tuple[str, str, str]  # operation, table_name, record_id
    values: Sequence[digest.Value]
    extra_metadata: Mapping[str, str | int] | None = None
    occurred_at: datetime | None = None  # when the transaction ends
    unchanged: str | None = None  # of a record
    is_audited: bool = True
    """Else it is for the change feed only."""


class _next_place(sa.sql.functions.FunctionElement[int]):
    """The place of a transaction's first change, which is also that of the others."""

    type = sa.BigInteger()
    inherit_cache = True
    name = "next_place"
    function = "nextval"


class _same_place(_next_place):
    inherit_cache = True
    name = "same_place"
    function = "currval"


@compiles(_next_place, "postgresql")
def _postgres_place(element: _next_place, compiler: SQLCompiler, **options: object) -> str:
    return f"{element.function}('audit_pending_places')"


@compiles(_next_place, "sqlite")
def _sqlite_place(element: _next_place, compiler: SQLCompiler, **options: object) -> str:
    # A single writer: each change has a place of its own.
    return "(SELECT ifnull(max(rowid), 0) + 1 FROM audit_pending)"


def _insert(place: _next_place) -> sa.Insert:
    # All values are as they are stored, so that no type converts them.
    names = (column.name for column in PENDING.c if column.name != "place")
    values = {name: sa.bindparam(f"_{name}", type_=Text) for name in names}
    return sa.insert(PENDING).values({**values, "place": place}).inline()


_INSERT_MORE = _insert(_same_place())
_FIRST = PreparedStatement(_insert(_next_place()), keyed=True)
_ONE_MORE = PreparedStatement(_INSERT_MORE, keyed=True)


def enabled() -> bool:
    """Whether auditing is switched on."""
    return config.current().audit_logging_enabled


def record(change: Change, *, always: bool = False) -> None:
    """Record a change at the end of the open transaction; `always`: even if auditing is off."""
    if change.values and (always or enabled()):
        # Last, as other callbacks record changes.
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
    account_of = attrgetter("account_id")
    changes.sort(key=account_of)  # stable: keeps the order within an account
    for account_id, own in groupby(changes, account_of):
        first, *others = _rows(own)
        if tenancy.current() in (account_id, tenancy.ALL_ACCOUNTS):
            _store(first, others)
        else:
            with tenancy.in_account(account_id):
                _store(first, others)
        db.on_commit(wakeups.News(NEWS, account_id))


def _store(first: JSONObject, others: Sequence[JSONObject]) -> None:
    # On PostgreSQL these statements travel with the commit.
    _FIRST.run(first)
    if len(others) < FEW:
        for row in others:
            _ONE_MORE.run(row)
    else:
        db.connection().execute(_INSERT_MORE, others)


def _rows(changes: Iterable[Change]) -> Iterator[JSONObject]:
    acting = actor.source.get()()  # `actor.current()`, a module less on the way of each write
    now, signed_at = clock.now(), acting.es_timestamp
    shared = {
        "_user_id": acting.user_id,
        "_user_email": acting.user_email,
        "_user_name": acting.user_name,
        "_ip_address": acting.ip_address,
        "_user_agent": acting.user_agent,
        "_request_id": acting.request_id,
        "_es_username": acting.es_username,
        "_es_reason": acting.es_reason,
        "_es_timestamp": clock.iso(signed_at) if signed_at else None,
    }
    signing = {"es_method": acting.es_method} if acting.es_method else {}
    for number, change in enumerate(changes):
        metadata = {**change.extra_metadata, **signing} if change.extra_metadata else signing
        operation, table_name, record_id = change.target
        arrays = zip(*change.values, strict=True)
        columns, olds, news = map(_array, arrays)
        texts = (columns, olds, news, change.unchanged)
        yield {
            **shared,
            "_account_id": change.account_id,
            "_number": number,
            "_is_audited": change.is_audited,
            "_operation": operation,
            "_table_name": table_name,
            "_record_id": record_id,
            "_occurred_at": clock.iso(change.occurred_at or now),
            "_extra_metadata": digest.canonical(metadata).decode() if metadata else None,
            "_columns": columns,
            "_old_values": olds,
            "_new_values": news,
            "_unchanged": change.unchanged,
            "_size": sum([len(text) for text in texts if text]),
        }


def _array(values: Sequence[str | None]) -> str | None:
    """A JSON array; null for values that all are."""
    return orjson.dumps(values).decode() if any(value is not None for value in values) else None
