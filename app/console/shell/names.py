"""The names, in the page's language, of states and filters that services name by constants."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from app.collections import fields
from app.web.languages import lazy_gettext

STATES = {
    "accepted": lazy_gettext("accepted"),
    "api": lazy_gettext("API"),
    "cancelled": lazy_gettext("cancelled"),
    "completed": lazy_gettext("completed"),
    "console": lazy_gettext("browser"),
    "created": lazy_gettext("created"),
    "deleted": lazy_gettext("deleted"),
    "delivered": lazy_gettext("delivered"),
    "done": lazy_gettext("done"),
    "expired": lazy_gettext("expired"),
    "failed": lazy_gettext("failed"),
    "not run": lazy_gettext("not run"),
    "pending": lazy_gettext("pending"),
    "portal": lazy_gettext("portal"),
    "ready": lazy_gettext("ready"),
    "retrying": lazy_gettext("retrying"),
    "running": lazy_gettext("running"),
    "skipped": lazy_gettext("skipped"),
    "updated": lazy_gettext("updated"),
    "used": lazy_gettext("used"),
    "waiting": lazy_gettext("waiting"),
}
OPERATION_NAMES = {
    "list": lazy_gettext("list"),
    "view": lazy_gettext("view"),
    "create": lazy_gettext("create"),
    "update": lazy_gettext("update"),
    "delete": lazy_gettext("delete"),
}
# Types of values that no field has.
RULE_TYPES = {"any": lazy_gettext("Any value"), "list": lazy_gettext("List")}
FILTERS = {
    "collection": lazy_gettext("Collection"),
    "event": lazy_gettext("Event"),
    "kind": lazy_gettext("Kind"),
    "operation": lazy_gettext("Operation"),
    "path": lazy_gettext("Read via"),
    "role": lazy_gettext("Role"),
    "state": lazy_gettext("State"),
    "status": lazy_gettext("State"),
    "target_type": lazy_gettext("Object"),
    "actor_kind": lazy_gettext("Kind of actor"),
    "user_id": lazy_gettext("Person"),
    "webhook": lazy_gettext("Webhook"),
    "workflow": lazy_gettext("Workflow"),
}


def of_state(state: str) -> str:
    """The name of a state of work, an invitation or a change."""
    return str(STATES.get(state, state))


def states(some: Sequence[str]) -> dict[str, str]:
    return {state: of_state(state) for state in some}


def of_filter(name: str) -> str:
    return str(FILTERS.get(name, name.capitalize()))


def of_type(type_: str) -> str:
    if type_ in fields.TYPES:
        return str(fields.TYPES[type_].label)
    return str(RULE_TYPES.get(type_, type_))


def types(some: Iterable[str]) -> dict[str, str]:
    return {type_: of_type(type_) for type_ in some}


def of_operations(operations: Iterable[str]) -> str:
    return ", ".join(str(OPERATION_NAMES[operation]) for operation in operations)
