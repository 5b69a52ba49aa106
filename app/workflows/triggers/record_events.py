"""Starts and wakes instances on record changes, in the change's transaction."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from app import clock, db, events
from app.auth.principal import Principal
from app.collections import access, masking
from app.errors import Forbidden
from app.ids import new_id
from app.records.read import event_view, views
from app.types import JSONObject
from app.workflows import serialization, versions
from app.workflows.engine import event_waits
from app.workflows.language import expressions
from app.workflows.models import EVENT
from app.workflows.triggers import listeners, start


@events.subscribe(events.RecordChanged)
def note(event: events.RecordChanged) -> None:
    """Start the workflows of a change, and wake waiting instances before the commit."""
    found = listeners.of_account(event.account_id)
    name, collection = f"records.{event.operation}", event.definition.name.lower()
    starting, awaited = found.of(name, collection), found.may_await(name, collection)
    if not starting and not awaited:
        return
    told, root_id = _Told(event, name), new_id()
    for listener in starting:
        owner = (listener.account_id, listener.owner_home, listener.owner_id)
        seen, personal = told.to(*owner)
        # Where nobody may look, nothing can be compared: the instance begins, to fail and say why.
        if not told.acting(*owner) or all(told.holds(c, seen, {}) for c in listener.conditions):
            row = start.row(listener, seen, EVENT, holds_pii=personal, root_id=root_id)
            if row is not None:
                db.before_commit(start.write, row)
    if awaited:
        db.before_commit(_tell_waiting, partial(_tell, told, name, collection))


def _tell_waiting(tellings: list[Callable[[], None]]) -> None:
    for telling in tellings:
        telling()


def _tell(told: _Told, name: str, collection: str) -> None:
    for one in event_waits.awaiting(told.event.account_id, name, collection):
        owner = told.owner_of(one)
        if owner is None:
            event_waits.arrive(one, None)
            continue
        seen, personal = told.to(one.account_id, *owner)
        if told.holds(one.condition, seen, serialization.loads(one.known)):
            event_waits.arrive(one, seen, personal)


class _Told:
    """An event as owners of workflows may see it."""

    def __init__(self, event: events.RecordChanged, name: str) -> None:
        self.event, self.name = event, name
        self._asker = access.rule_caller(event.by)
        self._seen: dict[tuple[str, str, str], tuple[JSONObject, bool]] = {}
        self._able: dict[tuple[str, str, str], Principal | None] = {}

    def holds(self, condition: str | None, seen: Any, known: Any) -> bool:
        """Whether a condition holds, over what the owner sees and what else is known."""
        return expressions.holds_for(condition, seen, self._asker, clock.now(), known)

    def to(self, *owner: str) -> tuple[JSONObject, bool]:
        """What an owner is told, and whether it has personal data unmasked."""
        if owner not in self._seen:
            self._seen[owner] = self._shown(*owner)  # type: ignore[index]
        return self._seen[owner]  # type: ignore[index]

    def owner_of(self, one: Any) -> tuple[str, str] | None:
        """Whose rights what waits has now, as its steps have; None where nobody may act."""
        first = (one.owner_home, one.owner_id)
        if self.acting(one.account_id, *first):
            return first
        version = event_waits.version_of(one)
        heir = version.latest_owner() if version else first
        return heir if self.acting(one.account_id, *heir) else None

    def acting(self, *owner: str) -> Principal | None:
        """The user with those ids, acting in the account; None where that is not possible."""
        if owner not in self._able:
            self._able[owner] = _acting(*owner)  # type: ignore[index]
        return self._able[owner]  # type: ignore[index]

    def _shown(self, *owner: str) -> tuple[JSONObject, bool]:
        definition, told, by = self.event.definition, {}, self.acting(*owner)
        for part in ("record", "previous"):
            row = getattr(self.event, part)
            told[part] = None if row is None else _seen(definition, row, by)
        seen = {"event": self.name, "collection": definition.name, **told}
        personal = bool(definition.personal) and by is not None and not masking.masks_for(by)
        plain: JSONObject = serialization.plain(seen)
        return plain, personal


def _acting(account_id: str, home: str, user_id: str) -> Principal | None:
    try:
        return versions.current_owner(account_id, home, user_id)
    except Forbidden:
        return None


def _seen(definition: Any, row: Any, by: Principal | None) -> object:
    """A record as it may be viewed, also one that is deleted by now."""
    return views.render_full(row, event_view.access_of_row(definition, row, by))
