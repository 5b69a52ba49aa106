"""Reading an account's security log: pages, exports, verification and the access report."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson
import sqlalchemy as sa

from app import clock, db
from app.accounts.types import Query
from app.audit import entries as audit
from app.audit.chain import verify
from app.audit.chain.log import Row
from app.audit.security_log import entries, sealing
from app.audit.security_log.entries import EVENTS, HEADS
from app.audit.security_log.log import SECURITY
from app.audit.security_log.models import EventKind
from app.context import tenancy
from app.db import counts
from app.types import JSONObject

READS = (EventKind.PERSONAL_DATA_READ, EventKind.OPERATOR_READ)
MAX_REPORTED = 10_000  # events of an access report
FILTERS = ("kind", "user_id", "actor_kind", "actor_id", "target_type", "path")
SHOWN = (
    *("number", "kind", "target_type", "target_id", "path", "user_id", "user_email"),
    *("user_name", "ip_address", "user_agent", "request_id", "checksum"),
)


def page(account_id: str, query: Query) -> JSONObject:
    """The newest matching events before a number, as the API shows them."""
    sealing.seal(account_id)
    limit = query["limit"]
    found = list(_newest(account_id, query, limit + 1, before=query.get("before")))
    items = [view(event) for event in found[:limit]]
    has_more = len(found) > limit
    return {
        "items": items,
        "limit": limit,
        "has_more": has_more,
        "next_before": items[-1]["number"] if has_more else None,
    }


def count(account_id: str, query: Query, max_total: int | None) -> int:
    """The number of sealed events that match, counted up to `max_total` + 1."""
    where = (EVENTS.c.account_id == account_id, *conditions(query))
    return counts.count_up_to(EVENTS, where, max_total)


def around(
    account_id: str,
    query: Query,
    limit: int,
    *,
    before: int | None = None,
    after: int | None = None,
) -> list[JSONObject]:
    """The matching events next to a number, else the newest ones; the newest first."""
    sealing.seal(account_id)
    if after is None:
        rows = list(_newest(account_id, query, limit, before=before))
    else:
        newer = (EVENTS.c.account_id == account_id, EVENTS.c.number > after, *conditions(query))
        nearest = sa.select(EVENTS).where(*newer).order_by(EVENTS.c.number).limit(limit)
        found = db.connection().execute(nearest).mappings()
        rows = [dict(row) for row in found][::-1]
    return [{**view(row), "moment": row["occurred_at"]} for row in rows]


def view(event: Row) -> JSONObject:
    """An event as the API and the console show it."""
    details: JSONObject | None = orjson.loads(event["details"] or "null")
    shown = {name: event[name] for name in SHOWN}
    if shown["kind"] == entries.ERASED_KIND:
        shown["kind"] = EventKind.LOG_ERASED
    shown["actor"] = audit.named(event)
    return {**shown, "occurred_at": clock.iso(event["occurred_at"]), "details": details}


def export(account_id: str, query: Query) -> Iterator[JSONObject]:
    """The matching events as entries of the chain, in its order."""
    sealing.seal(account_id)
    return entries.iter_entries(account_id, *conditions(query), until=_last(account_id))


def export_views(account_id: str, query: Query) -> Iterator[JSONObject]:
    """The matching events as `view` shows them, in the order of the chain."""
    sealing.seal(account_id)
    found = entries.iter_events(account_id, *conditions(query), until=_last(account_id))
    return map(view, found)


def name_of(account_id: str, user_id: str) -> str | None:
    """The name in a user's newest event: the id if it is erased; None without events."""
    own = (EVENTS.c.account_id == account_id, EVENTS.c.user_id == user_id)
    name = sa.func.coalesce(EVENTS.c.user_email, EVENTS.c.user_name, EVENTS.c.user_id)
    newest = sa.select(name).where(*own).order_by(EVENTS.c.number.desc()).limit(1)
    found: str | None = db.connection().scalar(newest)
    return found


def count_after(account_id: str, number: int) -> int:
    """The number of events that follow one."""
    sealing.seal(account_id)
    return max(0, _last(account_id) - number)


def verify_chain(account_id: str) -> JSONObject:
    """The verification result of the chain, with its signed checkpoint."""
    (report,) = verify.verify_all(SECURITY, account_id)["chains"]
    return {**report, "checkpoint": sealing.stored_checkpoint(account_id)}


def account_ids(account_id: str | None) -> list[str]:
    """The accounts with a security log, or the one with this id."""
    return sorted(SECURITY.accounts()) if account_id is None else [account_id.lower()]


def access_report(account_id: str, query: Query) -> JSONObject:
    """Report the readers of a record's or collection's personal data, or what one user has read.

    One item for each reader, collection, path and set of fields, the latest first.
    """
    sealing.seal(account_id)
    groups: dict[tuple[object, ...], JSONObject] = {}
    found = list(_newest(account_id, query, MAX_REPORTED + 1, EVENTS.c.kind.in_(READS)))
    for event in found[:MAX_REPORTED]:
        details = orjson.loads(event["details"] or '{"fields": []}')
        key = (*(event[name] for name in ("user_id", "target_type", "path")), *details["fields"])
        moment = clock.iso(event["occurred_at"])
        group = groups.setdefault(key, {"last_read_at": moment, "reads": 0, "records": 0})
        group |= {name: event[name] for name in ("user_id", "target_type", "path")}
        for name in ("user_email", "user_name"):
            group[name] = group.get(name) or event[name]
        group["fields"] = details["fields"]
        group["first_read_at"] = moment
        group["reads"] += 1
        group["records"] += details.get("count", 0)
    return {"items": list(groups.values()), "is_complete": len(found) <= MAX_REPORTED}


def conditions(query: Query) -> list[sa.ColumnElement[bool]]:
    if query.get("kind") == EventKind.LOG_ERASED:
        query = {**query, "kind": entries.ERASED_KIND}
    found = [EVENTS.c[name] == query[name] for name in FILTERS if query.get(name)]
    if query.get("from_date"):
        found.append(EVENTS.c.occurred_at >= query["from_date"])
    if query.get("to_date"):
        found.append(EVENTS.c.occurred_at <= query["to_date"])
    if query.get("record_id"):
        # Ids of several records stand in the details only: an index finds those without a target.
        id = query["record_id"]
        quoted = orjson.dumps(id).decode()
        is_named = EVENTS.c.details.contains(quoted, autoescape=True)
        among = sa.and_(EVENTS.c.target_id == "", EVENTS.c.kind.in_(READS), is_named)
        found += [EVENTS.c.target_id.in_((id, "")), sa.or_(EVENTS.c.target_id == id, among)]
    return found


def _newest(
    account_id: str, query: Query, limit: int, *where: Any, before: int | None = None
) -> Iterator[JSONObject]:
    place = [EVENTS.c.account_id == account_id, *where]
    if before is not None:
        place.append(EVENTS.c.number < before)
    newest = sa.select(EVENTS).where(*place, *conditions(query))
    rows = db.connection().execute(newest.order_by(EVENTS.c.number.desc()).limit(limit))
    return (dict(row) for row in rows.mappings())


def _last(account_id: str) -> int:
    query = sa.select(HEADS.c.number).where(HEADS.c.account_id == account_id)
    with tenancy.in_account(account_id):
        return db.connection().scalar(query) or 0
