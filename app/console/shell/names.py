"""The names, in the page's language, of states and filters that services name by constants."""

from __future__ import annotations

from app.http.languages import lazy_gettext

STATES = {
    "accepted": lazy_gettext("accepted"),
    "api": lazy_gettext("API"),
    "cancelled": lazy_gettext("cancelled"),
    "completed": lazy_gettext("completed"),
    "console": lazy_gettext("console"),
    "created": lazy_gettext("created"),
    "deleted": lazy_gettext("deleted"),
    "delivered": lazy_gettext("delivered"),
    "done": lazy_gettext("done"),
    "expired": lazy_gettext("expired"),
    "failed": lazy_gettext("failed"),
    "pending": lazy_gettext("pending"),
    "retrying": lazy_gettext("retrying"),
    "running": lazy_gettext("running"),
    "skipped": lazy_gettext("skipped"),
    "updated": lazy_gettext("updated"),
    "waiting": lazy_gettext("waiting"),
}
FILTERS = {
    "collection": lazy_gettext("Collection"),
    "event": lazy_gettext("Event"),
    "kind": lazy_gettext("Kind"),
    "operation": lazy_gettext("Operation"),
    "state": lazy_gettext("State"),
    "status": lazy_gettext("Status"),
    "webhook": lazy_gettext("Webhook"),
    "workflow": lazy_gettext("Workflow"),
}


def of_state(state: str) -> str:
    """The name of a state of work, an invitation or a change."""
    return str(STATES.get(state, state))


def of_filter(name: str) -> str:
    """The label of a filter."""
    return str(FILTERS.get(name, name.capitalize()))
