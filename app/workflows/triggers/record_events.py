"""Starts and wakes instances on record changes, in the change's transaction.

Which events start an account's workflows or may be awaited is cached under the version of the
account's webhooks, which every record write already checks (`app/webhooks/outbox.py`): a write
without listeners costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import sqlalchemy as sa

from app import clock, db, events
from app.accounts.attributes import SEEN_BY_ADMINS
from app.accounts.directory import ATTRIBUTE
from app.audit.security_log import reads
from app.auth.principal import Principal, rule_caller
from app.collections import masking, people
from app.collections.fields import PEOPLE
from app.db import versioned_cache
from app.errors import Forbidden
from app.ids import new_id
from app.records.read import views
from app.rules import Type, values
from app.rules.nodes import OF_USER
from app.types import JSONMapping, JSONObject
from app.web import serialization
from app.webhooks import outbox
from app.workflows import versions
from app.workflows.engine import event_waits
from app.workflows.language import expressions
from app.workflows.models import VERSIONS, Trigger, Workflow
from app.workflows.triggers import start


@dataclass(frozen=True)
class Listener:
    """A workflow that an event starts."""

    account_id: str
    id: str
    kind: str
    version: int
    conditions: Sequence[str]
    owner_id: str
    owner_home: str


@dataclass(frozen=True)
class Listeners:
    """The listeners of an account, by event and collection in lower case ("" for any)."""

    started: Mapping[tuple[str, str], Sequence[Listener]]
    awaited: frozenset[str]

    def started_by(self, event: str, collection: str) -> list[Listener]:
        keys = ((event, collection), (event, ""))
        return [listener for key in keys for listener in self.started.get(key, ())]

    def may_await(self, event: str, collection: str) -> bool:
        """Whether any instance may wait for an event."""
        return event in self.awaited or f"{event} {collection}" in self.awaited


def _load(account_id: str) -> Listeners:
    where = (
        Workflow.account_id == account_id,
        Workflow.enabled,
        Workflow.trigger_type == Trigger.EVENT,
    )
    table: Any = Workflow.__table__
    started: dict[tuple[str, str], list[Listener]] = {}
    for row in db.connection().execute(sa.select(table).where(*where).order_by(table.c.id)):
        conditions = tuple(filter(None, (row.condition, row.trigger.get("condition"))))
        identity = (row.account_id, row.id, row.kind, row.version)
        listener = Listener(*identity, conditions, row.owner_id, row.owner_home)
        key = (row.trigger["event"], row.trigger.get("collection", "").lower())
        started.setdefault(key, []).append(listener)
    awaits = sa.select(VERSIONS.c.awaits).where(VERSIONS.c.account_id == account_id)
    awaited = {event for row in db.connection().execute(awaits) for event in row.awaits}
    return Listeners(started, frozenset(awaited))


def listeners_of(account_id: str) -> Listeners:
    """The listeners of an account, at the version that the open transaction has checked."""
    version = outbox.checked_version(account_id)
    cache = versioned_cache.cache("workflow_listeners")
    cached = cache.get(account_id, lambda: None)
    if cached is None or cached[0] != version:
        cached = (version, _load(account_id))
        cache.put(account_id, cached)
    listeners: Listeners = cached[1]
    return listeners


@events.subscribe(events.RecordChanged)
def note(event: events.RecordChanged) -> None:
    """Start the workflows of a change, and wake waiting instances before the commit."""
    listeners = listeners_of(event.account_id)
    name, collection = f"records.{event.operation}", event.definition.name.lower()
    starting, awaited = (
        listeners.started_by(name, collection),
        listeners.may_await(name, collection),
    )
    if not starting and not awaited:
        return
    view, root_id = _EventView(event, name), new_id()
    for listener in starting:
        owner = (listener.account_id, listener.owner_home, listener.owner_id)
        visible, personal = view.view_for(*owner)
        # If the owner lost access, conditions cannot be checked: start it, to fail with that
        # reason.
        if not view.acting(*owner) or all(view.holds(c, visible, {}) for c in listener.conditions):
            row = start.row(listener, visible, Trigger.EVENT, holds_pii=personal, root_id=root_id)
            if row is not None:
                db.before_commit(start.write, row)
    if awaited:
        db.before_commit(_wake_all, partial(_wake_waiting, view, name, collection))


def _wake_all(callbacks: list[Callable[[], None]]) -> None:
    for callback in callbacks:
        callback()


def _wake_waiting(view: _EventView, name: str, collection: str) -> None:
    for subscription in event_waits.awaiting(view.event.account_id, name, collection):
        owner = view.active_owner(subscription)
        if owner is None:
            event_waits.deliver(subscription, None)
            continue
        visible, personal = view.view_for(subscription.account_id, *owner)
        if view.holds(subscription.condition, visible, serialization.loads(subscription.known)):
            event_waits.deliver(subscription, visible, personal)


class _EventView:
    def __init__(self, event: events.RecordChanged, name: str) -> None:
        self.event, self.name = event, name
        self._caller = rule_caller(event.by)
        self._views: dict[tuple[str, str, str], tuple[JSONObject, bool]] = {}
        self._owners: dict[tuple[str, str, str], Principal | None] = {}

    def holds(self, condition: str | None, visible: Any, instance_values: Any) -> bool:
        people_ = self._people(condition, visible)
        now = clock.now()
        return expressions.holds_for(
            condition, self._exact(visible), self._caller, now, instance_values, people_
        )

    def _exact(self, visible: JSONMapping) -> JSONMapping:
        """The view with decimals, which are texts in JSON, to compare; what is masked stays."""
        types = self.event.definition.columns.items()
        names = [name for name, field in types if field.like.rule_type is Type.DECIMAL]
        if not names:
            return visible
        exact = dict(visible)
        for key in ("record", "previous"):
            if row := visible.get(key):
                read = {name: values.as_decimal(row[name]) for name in names if row.get(name)}
                exact[key] = {**row, **{name: one for name, one in read.items() if one is not None}}
        return exact

    def _people(self, condition: str | None, visible: Any) -> JSONObject:
        """What a condition reads of people in the record's fields, as admins see them, by name."""
        definition, account_id = self.event.definition, self.event.account_id
        wanted = dict[str, tuple[people.Key, str]]()
        for name, root, path in expressions.names_behind_fields(condition):
            record = visible.get(root) if root else visible["record"] or visible["previous"]
            id = (record or {}).get(path[0])
            if isinstance(id, str) and definition.references.get(path[0]) == PEOPLE:
                wanted[name] = ((account_id, id), ".".join(path[1:]))
        if not wanted:
            return {}
        shown = {*people.FIELDS, *(ATTRIBUTE + one for one in SEEN_BY_ADMINS(OF_USER))}
        read = people.read((key for key, _ in wanted.values()), sorted(shown))
        found: JSONObject = {}
        for name, (key, field) in wanted.items():
            person = read.get(key, {})
            values = {ATTRIBUTE + n: value for n, value in person.get("attributes", {}).items()}
            found[name] = {**person, **values}.get(field) if field in shown else None
        return found

    def view_for(self, *owner: str) -> tuple[JSONObject, bool]:
        """The owner's view of the event, and whether it has unmasked personal data."""
        if owner not in self._views:
            self._views[owner] = self._render(*owner)  # type: ignore[index]
        return self._views[owner]  # type: ignore[index]

    def active_owner(self, subscription: Any) -> tuple[str, str] | None:
        """The current owner of a waiting instance's steps; None if no owner may act."""
        first = (subscription.owner_home, subscription.owner_id)
        if self.acting(subscription.account_id, *first):
            return first
        version = event_waits.get_version(subscription)
        latest = version.latest_owner() if version else first
        return latest if self.acting(subscription.account_id, *latest) else None

    def acting(self, *owner: str) -> Principal | None:
        """The owner's principal in the account; None if the owner lost access."""
        if owner not in self._owners:
            self._owners[owner] = _current_owner(*owner)  # type: ignore[index]
        return self._owners[owner]  # type: ignore[index]

    def _render(self, *owner: str) -> tuple[JSONObject, bool]:
        definition, records, by = self.event.definition, {}, self.acting(*owner)
        for part in ("record", "previous"):
            row = getattr(self.event, part)
            records[part] = None if row is None else _visible_record(definition, row, by)
        visible = {"event": self.name, "collection": definition.name, **records}
        personal = bool(definition.personal) and by is not None and not masking.masks_for(by)
        plain: JSONObject = serialization.plain(visible)
        return plain, personal


def _current_owner(account_id: str, home: str, user_id: str) -> Principal | None:
    try:
        return versions.current_owner(account_id, home, user_id)
    except Forbidden:
        return None


def _visible_record(definition: Any, row: Any, by: Principal | None) -> object:
    """A record as the owner may view it, even if deleted."""
    with reads.by_path("workflow"):
        return views.render_full(row, views.access_of_row(definition, row, by))
