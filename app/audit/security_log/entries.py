"""Events as entries of a hash chain, in the form of the audit log (docs/audit.md).

So `docs/verify_audit.py` verifies an export of the security log as it does the audit log's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson
import sqlalchemy as sa

from app import clock, db
from app.audit.chain import digest
from app.audit.chain.log import Row
from app.audit.security_log.models import SecurityEvent, SecurityHead, SecurityStart
from app.db import Base
from app.types import JSONObject

EVENTS, HEADS, STARTS = (
    Base.metadata.tables[model.__tablename__]
    for model in (SecurityEvent, SecurityHead, SecurityStart)
)
BATCH_SIZE = 500
COLUMN = "details"
ACTOR = ("user_email", "user_name", "ip_address", "user_agent")
CUT = "log.cut"
ERASURE = "log.erased"  # how the API names it
ERASED = ("UPDATE", "audit_log")  # what a verifier takes as the entry of an erasure
SUFFIX = "/security"
"""Of the account in entries and checkpoints."""


def to_chain(event: Row, number: int) -> JSONObject:
    """What the digests of an event cover."""
    return {
        "account_id": f"{event['account_id']}{SUFFIX}",
        "id": number,
        "operation": event["kind"],
        "table_name": event["target_type"],
        "record_id": event["target_id"],
        "column_name": _column(event),
        "old_value": None,
        "new_value": event["details"],
        "user_id": event["user_id"],
        **{name: event.get(name) for name in ("user_email", "user_name")},
        **dict.fromkeys(("es_username", "es_reason", "es_timestamp")),
        **{name: event.get(name) for name in ("ip_address", "user_agent", "request_id")},
        "occurred_at": clock.iso(event["occurred_at"]),
        "extra_metadata": {"path": event["path"]} if event["path"] else None,
    }


def to_entry(event: Row, previous: str) -> JSONObject:
    """A sealed event as exports and streams have it, computed anew but for the stored checksum."""
    entry = to_chain(event, event["number"]) | {
        "salt": event["salt"],
        "values_digest": event["values_digest"],
        "actor_salt": event["actor_salt"],
        "actor_digest": event["actor_digest"],
    }
    entry["entry_digest"] = digest.entry_digest(entry)
    return entry | {"previous_hash": previous, "checksum": event["checksum"], "masked": False}


def _column(event: Row) -> str:
    if (event["kind"], event["target_type"]) != ERASED:
        return COLUMN
    return str(orjson.loads(event["details"])["column"])


def iter_events(
    account_id: str, *conditions: sa.ColumnElement[bool], after: int = 0, until: int | None = None
) -> Iterator[Row]:
    """An account's sealed events in order of their numbers, with the checksum before each."""
    while True:
        batch = read(account_id, *conditions, after=after, until=until)
        yield from batch
        if len(batch) < BATCH_SIZE:
            return
        after = batch[-1]["number"]


def read(
    account_id: str,
    *conditions: sa.ColumnElement[bool],
    after: int = 0,
    until: int | None = None,
    limit: int = BATCH_SIZE,
) -> list[JSONObject]:
    """The next sealed events after a number."""
    place = [EVENTS.c.account_id == account_id, EVENTS.c.number > after]
    if until is not None:
        place.append(EVENTS.c.number <= until)
    query = sa.select(*columns()).where(*place, *conditions).order_by(EVENTS.c.number)
    found = [dict(row) for row in db.connection().execute(query.limit(limit)).mappings()]
    for row in found:
        if row["previous"] is None:
            before = (STARTS.c.account_id == account_id, STARTS.c.entry_id == row["number"] - 1)
            start = db.connection().scalar(sa.select(STARTS.c.checksum).where(*before))
            row["previous"] = start.hex() if start else digest.FIRST_PREVIOUS
    return found


def columns() -> list[sa.ColumnElement[Any]]:
    """The columns that `to_entry` needs, and `previous`: null for the first event of a log."""
    before = EVENTS.alias("before")
    place = (before.c.account_id == EVENTS.c.account_id, before.c.number == EVENTS.c.number - 1)
    previous = sa.select(before.c.checksum).where(*place).scalar_subquery()
    return [*EVENTS.c, previous.label("previous")]


def iter_entries(
    account_id: str, *conditions: sa.ColumnElement[bool], after: int = 0, until: int | None = None
) -> Iterator[JSONObject]:
    """The entries of an account in order."""
    for event in iter_events(account_id, *conditions, after=after, until=until):
        yield to_entry(event, event["previous"])
