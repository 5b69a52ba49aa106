"""The newest changes of an account, as far as whoever looks may know of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from flask import url_for

from app.audit import recent
from app.audit.append import CREATE, DELETE
from app.collections import table as tables
from app.collections.definition import Definition
from app.console.shell.scopes import Place

SHOWN, LOOKED_AT = 8, 60
VERBS = {CREATE: "made", DELETE: "deleted"}
# Where a change leads to: the list that the thing stands in, if it has one.
LISTS = {
    "webhooks": ("webhook", "console.show_webhooks"),
    "workflows": ("workflow", "console.show_workflows"),
    "users": ("user", "console.show_team"),
    "groups": ("group", "console.show_groups"),
    "group_members": ("member of a group", "console.show_groups"),
    "invitations": ("invitation", "console.show_invitations"),
    "api_keys": ("API key", "console.show_keys"),
    "accounts": ("account", None),
    "provider_settings": ("provider of sign-in", "console.show_sso"),
    "identities": ("identity of a user", None),
}
NOT_OF_PLACES = ("provider_settings",)


@dataclass(frozen=True)
class Change:
    """One change: who did what, and where it is to be seen."""

    what: str
    verb: str
    who: str
    when: datetime
    target: str | None


def changes(place: Place, opened: Sequence[Definition]) -> list[Change]:
    """The newest changes: of records, only those of collections that are open to the caller."""
    by_table = {one.table.name: one for one in opened}
    found = []
    for row in recent.changes(place.account.id, LOOKED_AT):
        known = by_table.get(row.table_name)
        if known is not None or not row.table_name.startswith(tables.PREFIX):
            what, target = _of_record(place, known, row) if known else _of_other(place, row)
            verb, who = VERBS.get(row.operation, "changed"), row.user_email or row.user_id
            found.append(Change(what, verb, who, row.occurred_at, target))
    return found[:SHOWN]


def _of_record(place: Place, collection: Definition, row: Any) -> tuple[str, str | None]:
    record_id, gone = row.record_id, row.operation == DELETE
    what, at = f"record of {collection.name}", {**place.at, "name": collection.name}
    if gone or not record_id:
        return what, url_for("console.show_records", **at)
    return what, url_for("console.show_record", record_id=record_id, **at)


def _of_other(place: Place, row: Any) -> tuple[str, str | None]:
    table: str = row.table_name
    what, endpoint = LISTS.get(table, (table.replace("_", " "), None))
    if endpoint is None or (table in NOT_OF_PLACES and place.by.is_superadmin):
        return what, None
    return what, url_for(endpoint, **({} if table in NOT_OF_PLACES else place.at))
