"""Jobs of what happened: changes of records, and events of accounts.

Written in the transaction of the change, whichever door or cascade it came by. Without a handler
nothing is subscribed: writes cost what they cost without extensions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import orjson
import sqlalchemy as sa
from cryptography.fernet import InvalidToken

from app import clock, crypto, db, events
from app import jobs as queue
from app.accounts.models import SYSTEM_ACCOUNT_ID
from app.context import actor, tenancy
from app.context.actor import Actor, ActorKind
from app.db.functions import database_now
from app.events import Happened, RecordChanged
from app.extensions import jobs, registry
from app.extensions.before import as_json
from app.extensions.registry import Handler, Kind
from app.jobs import JobState
from app.operator import store, types
from app.types import JSONObject

CHANGES = {"create": Kind.AFTER_CREATE, "update": Kind.AFTER_UPDATE, "delete": Kind.AFTER_DELETE}
PEOPLE = (None, ActorKind.USER, ActorKind.OPERATOR)
REPLACEMENT = "***"
BATCH_SIZE = 200
_listeners: dict[str, list[Handler]] = {}
"""The handlers of events, by type."""
_after: dict[tuple[Kind, str], list[Handler]] = {}
"""The handlers of changes, by kind and collection in lower case."""
_TABLE = queue.TABLE


@registry.on_change
def _listen() -> None:
    """Subscribe to what handlers are registered for, and to nothing else."""
    _after.clear()
    for kind in CHANGES.values():
        for collection, found in registry.of(kind).items():
            _after.setdefault((kind, collection.lower()), []).extend(found)
    _listeners.clear()
    for written, found in registry.of(Kind.ON).items():
        for type in types.expand([written]):
            _listeners.setdefault(type, []).extend(found)
    hears_records = _after or any(type.startswith(f"{types.RECORDS}.") for type in _listeners)
    subscriptions: dict[Any, tuple[Callable[[Any], None], bool]] = {
        RecordChanged: (_note_change, bool(hears_records)),
        Happened: (_note_event, bool(_listeners)),
    }
    for event, (subscriber, is_wanted) in subscriptions.items():
        events.unsubscribe(event, subscriber)
        if is_wanted:
            events.subscribe(event)(subscriber)


def _note_change(event: RecordChanged) -> None:
    for handler in _after.get((CHANGES[event.operation], event.definition.name.lower()), ()):
        rows = [row for row in (event.previous, event.record) if row is not None]
        values = [as_json(event.definition, event.definition.columns, row) for row in rows]
        by, id = jobs.stored_caller(event.by), rows[-1]["id"]
        new = jobs.new(handler, values, account_id=event.account_id, by=by, record_id=id)
        db.before_commit(jobs.enqueue, new)
    type = f"{types.RECORDS}.{event.operation}"
    if type in _listeners and not event.definition.announced:  # else it happens, too
        row = event.record or event.previous or {}
        about = {"collection": event.definition.name, "record_id": row.get("id")}
        _note_event(Happened(event.account_id, type, about))


def _note_event(event: Happened) -> None:
    for handler in _listeners.get(event.type, ()):
        who = actor.current()
        shown = {
            "id": event.id,
            "type": event.type,
            "account_id": event.account_id,
            "at": clock.iso(event.at),
            "actor": store.shown(who, event.account_id),
            "data": dict(event.data),
        }
        new = jobs.new(
            handler,
            [shown],
            account_id=event.account_id,
            by=_person(who, event.account_id),
            record_id=event.data.get("record_id"),
        )
        db.before_commit(jobs.enqueue, new)


def _person(who: Actor, account_id: str) -> JSONObject:
    """The person who caused an event; nobody for keys, workflows and the service itself.

    Those may have less rights than the user whom they belong to, which nobody remembers.
    """
    if who.kind not in PEOPLE or who.user_id in (actor.SYSTEM.user_id, actor.ANONYMOUS.user_id):
        return {}
    is_operator = who.kind is ActorKind.OPERATOR
    return {"user_id": who.user_id, "home_id": SYSTEM_ACCOUNT_ID if is_operator else account_id}


@events.subscribe(events.RecordErased)  # also in jobs of an extension that is gone
def _erase_record(event: events.RecordErased) -> None:
    _rewrite(event.account_id, lambda text: _without_record(text, event.record_id))


def _without_record(text: str, record_id: str) -> str:
    return orjson.dumps(_reduced(orjson.loads(text), record_id)).decode()


def _reduced(value: object, record_id: str) -> object:
    """JSON values in which the record has only its id."""
    if isinstance(value, list):
        return [_reduced(one, record_id) for one in value]
    if not isinstance(value, Mapping):
        return value
    if value.get("id") == record_id:
        return {"id": record_id}
    return {name: _reduced(one, record_id) for name, one in value.items()}


@events.subscribe(events.UserErased)
def _erase_user(event: events.UserErased) -> None:
    written = [orjson.dumps(text).decode()[1:-1] for text in (event.user_id, *event.emails)]
    # Longest first, as one address may contain another.
    pattern = "|".join(map(re.escape, sorted(written, key=len, reverse=True)))
    erased = re.compile(pattern, re.IGNORECASE)
    _rewrite(event.account_id, lambda text: erased.sub(REPLACEMENT, text), event.user_id)


def _rewrite(account_id: str, change: Callable[[str], str], user_id: str | None = None) -> None:
    """Change the data of an account's jobs that wait, run or have failed.

    Jobs for a user run for nobody. Who runs one has read it already: another worker runs it again,
    with the new data.
    """
    is_ours = _TABLE.c.kind.startswith(jobs.PREFIX, autoescape=True)
    own = (_TABLE.c.account_id == account_id, is_ours, _TABLE.c.status != JobState.DONE)
    last = ""
    with tenancy.in_account(account_id):
        while rows := _batch(*own, _TABLE.c.id > last):
            for row in rows:
                last = row.id
                try:
                    text = crypto.decrypt(row.payload["data"])
                except (KeyError, InvalidToken):
                    continue
                is_theirs = user_id is not None and row.payload.get("user_id") == user_id
                if (new := change(text)) != text or is_theirs:
                    nobody = dict.fromkeys(("user_id", "home_id", "limits")) if is_theirs else {}
                    payload = {**row.payload, **nobody, "data": crypto.encrypt(new)}
                    again = {"attempts": _TABLE.c.attempts + 1, "due_at": database_now()}
                    is_running = row.status == JobState.PENDING and row.attempts
                    values = {"payload": payload, **(again if is_running else {})}
                    mine = (_TABLE.c.account_id == account_id, _TABLE.c.id == row.id)
                    db.connection().execute(sa.update(_TABLE).where(*mine).values(**values))


def _batch(*where: Any) -> list[Any]:
    query = sa.select(_TABLE).where(*where).order_by(_TABLE.c.id).limit(BATCH_SIZE)
    return list(db.connection().execute(query.with_for_update()))


_listen()
