"""Recent changes in an account that the caller may see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from flask import url_for

from app.audit import recent
from app.audit.append import CREATE, DELETE
from app.collections import table as tables
from app.collections.definition import ByFormerName, Definition
from app.console.shell.scopes import AccountScope
from app.http.languages import gettext, lazy_gettext

MAX_SHOWN, MAX_SCANNED = 8, 60
VERBS = {CREATE: lazy_gettext("created"), DELETE: lazy_gettext("deleted")}
CHANGED = lazy_gettext("changed")
# By table: the label of a row, and the page that lists it, if any.
LIST_PAGES = {
    "webhooks": (lazy_gettext("Webhook"), "console.show_webhooks"),
    "workflows": (lazy_gettext("Workflow"), "console.show_workflows"),
    "users": (lazy_gettext("User"), "console.show_team"),
    "groups": (lazy_gettext("Group"), "console.show_groups"),
    "group_members": (lazy_gettext("Group member"), "console.show_groups"),
    "invitations": (lazy_gettext("Invitation"), "console.show_invitations"),
    "api_keys": (lazy_gettext("API key"), "console.show_keys"),
    "accounts": (lazy_gettext("Account"), None),
    "provider_settings": (lazy_gettext("Identity provider"), "console.show_sso"),
    "identities": (lazy_gettext("User identity"), None),
}
WITHOUT_URL_ARGS = ("provider_settings",)


@dataclass(frozen=True)
class Change:
    """One change: who did what, and its page."""

    what: str
    verb: str
    who: str
    when: datetime
    target: str | None
    list_target: str | None
    count: int = 1
    """How many changes in a row are alike; `when` is the latest of them."""

    def is_like(self, other: Change) -> bool:
        """Whether the same user did the same to things of the same kind."""
        return (self.what, self.verb, self.who) == (other.what, other.verb, other.who)


def changes(scope: AccountScope, collections: Sequence[Definition]) -> list[Change]:
    """The newest changes, those in a row that are alike as one; of records, only `collections`'."""
    by_table, changes = ByFormerName(collections), list[Change]()
    for row in recent.changes(scope.account.id, MAX_SCANNED):
        collection = by_table.find(row.table_name, row.occurred_at)
        if collection is None and row.table_name.startswith(tables.PREFIX):
            continue
        change = _change(scope, collection, row)
        if changes and changes[-1].is_like(change):
            changes[-1] = replace(changes[-1], count=changes[-1].count + 1)
        else:
            changes.append(change)
    return changes[:MAX_SHOWN]


def _change(scope: AccountScope, collection: Definition | None, row: Any) -> Change:
    verb, actor = (
        str(VERBS.get(row.operation, lazy_gettext("changed"))),
        row.user_email or row.user_id,
    )
    if collection is None:
        label, target = _list_link(scope, row)
        return Change(label, verb, actor, row.occurred_at, target, target)
    url_args = {**scope.url_args, "name": collection.name}
    target = all_records = url_for("console.show_records", **url_args)
    if row.operation != DELETE and row.record_id:
        target = url_for("console.show_record", record_id=row.record_id, **url_args)
    what = gettext("Record of %(collection)s", collection=collection.name)
    return Change(what, verb, actor, row.occurred_at, target, all_records)


def _list_link(scope: AccountScope, row: Any) -> tuple[str, str | None]:
    table: str = row.table_name
    label, endpoint = LIST_PAGES.get(table, (table.replace("_", " ").capitalize(), None))
    if endpoint is None or (table in WITHOUT_URL_ARGS and scope.by.is_superadmin):
        return str(label), None
    return str(label), url_for(endpoint, **({} if table in WITHOUT_URL_ARGS else scope.url_args))
