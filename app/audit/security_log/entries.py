"""Events as entries of a hash chain, in the form of the audit log (docs/audit.md).

So `docs/verify_audit.py` verifies an export of the security log as it does the audit log's.
"""

from __future__ import annotations

from collections.abc import Iterator

import orjson
import sqlalchemy as sa

from app import clock, db
from app.audit import entries as audit
from app.audit.chain import digest
from app.audit.chain.log import Row
from app.audit.security_log.models import SecurityEvent, SecurityHead, SecurityStart
from app.context import actor
from app.db import Base
from app.types import JSONMapping, JSONObject

EVENTS = Base.metadata.tables[SecurityEvent.__tablename__]
HEADS = Base.metadata.tables[SecurityHead.__tablename__]
STARTS = Base.metadata.tables[SecurityStart.__tablename__]
BATCH_SIZE = 500
ACTOR = ("user_email", "user_name", "ip_address", "user_agent", "actor_name")
# The stored kind and target of an erasure, by which verifiers of the audit log know it. The API
# calls it `log.erased`.
ERASED_KIND, ERASED_TARGET = "UPDATE", "audit_log"
CHAIN_SUFFIX = "/security"


def chain_id(account_id: str) -> str:
    """The account's id, marked, so that checkpoints of the audit log cannot pass for this log's."""
    return f"{account_id}{CHAIN_SUFFIX}"


def own_event(
    account_id: str, kind: str, target_type: str, target_id: object, details: JSONMapping
) -> JSONObject:
    """An event that the log itself records, to be appended to its chain."""
    return {
        "account_id": account_id,
        "kind": kind,
        "target_type": target_type,
        "target_id": str(target_id),
        "path": None,
        "user_id": actor.SYSTEM.user_id,
        "occurred_at": clock.now(),
        **dict.fromkeys((*ACTOR, "request_id")),
        "digest_version": digest.VERSION,
        "actor_kind": actor.ActorKind.USER.value,
        "actor_id": actor.SYSTEM.user_id,
        "details": orjson.dumps(details).decode(),
    }


def to_audit_entry(event: Row, number: int) -> JSONObject:
    """An event in the form of an audit entry, over which its digests are computed."""
    # Verifiers learn from the entry of an erasure which column's salt is gone.
    is_erasure = (event["kind"], event["target_type"]) == (ERASED_KIND, ERASED_TARGET)
    column = str(orjson.loads(event["details"])["column"]) if is_erasure else "details"
    return {
        "account_id": chain_id(event["account_id"]),
        "id": number,
        "operation": event["kind"],
        "table_name": event["target_type"],
        "record_id": event["target_id"],
        "column_name": column,
        "old_value": None,
        "new_value": event["details"],
        "user_id": event["user_id"],
        "actor": audit.named(event),
        **{name: event[name] for name in digest.NAMING},
        "user_email": event.get("user_email"),
        "user_name": event.get("user_name"),
        "es_username": None,
        "es_reason": None,
        "es_timestamp": None,
        "ip_address": event.get("ip_address"),
        "user_agent": event.get("user_agent"),
        "request_id": event.get("request_id"),
        "occurred_at": clock.iso(event["occurred_at"]),
        "extra_metadata": {"path": event["path"]} if event["path"] else None,
        "digest_version": digest.version_of(event),
    }


def to_entry(event: Row, previous: str) -> JSONObject:
    """A sealed event as exports and streams have it, computed anew but for the stored checksum."""
    entry = to_audit_entry(event, event["number"]) | {
        "salt": event["salt"],
        "values_digest": event["values_digest"],
        "actor_salt": event["actor_salt"],
        "actor_digest": event["actor_digest"],
    }
    entry["entry_digest"] = digest.entry_digest(entry)
    return entry | {"previous_hash": previous, "checksum": event["checksum"], "masked": False}


def iter_events(
    account_id: str, *conditions: sa.ColumnElement[bool], until: int | None = None
) -> Iterator[Row]:
    """An account's sealed events in order of their numbers, with the checksum before each."""
    after = 0
    while batch := read(account_id, *conditions, after=after, until=until):
        yield from batch
        if len(batch) < BATCH_SIZE:
            return
        after = batch[-1]["number"]


def iter_entries(
    account_id: str, *conditions: sa.ColumnElement[bool], until: int | None = None
) -> Iterator[JSONObject]:
    """The entries of an account in order."""
    for event in iter_events(account_id, *conditions, until=until):
        yield to_entry(event, event["previous"])


def read(
    account_id: str,
    *conditions: sa.ColumnElement[bool],
    after: int = 0,
    until: int | None = None,
    limit: int = BATCH_SIZE,
) -> list[JSONObject]:
    """The next sealed events after a number, each with the checksum before it as `previous`."""
    before = EVENTS.alias("before")
    is_before = (before.c.account_id == EVENTS.c.account_id, before.c.number == EVENTS.c.number - 1)
    previous = sa.select(before.c.checksum).where(*is_before).scalar_subquery().label("previous")
    place = [EVENTS.c.account_id == account_id, EVENTS.c.number > after]
    if until is not None:
        place.append(EVENTS.c.number <= until)
    query = sa.select(*EVENTS.c, previous).where(*place, *conditions).order_by(EVENTS.c.number)
    rows = db.connection().execute(query.limit(limit)).mappings().all()
    return [
        {**row, "previous": row["previous"] or _checksum_at_start(account_id, row["number"])}
        for row in rows
    ]


def _checksum_at_start(account_id: str, first: int) -> str:
    """The checksum before the first entry of a log, perhaps after a cut."""
    cut = (STARTS.c.account_id == account_id, STARTS.c.entry_id == first - 1)
    start = db.connection().scalar(sa.select(STARTS.c.checksum).where(*cut))
    return start.hex() if start else digest.FIRST_PREVIOUS
