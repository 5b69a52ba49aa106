"""Recent changes in an account that the caller may see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from flask import url_for

from app.audit import recent
from app.audit.append import CREATE, DELETE
from app.collections import table as tables
from app.collections.definition import ByFormerName, Definition
from app.console.shell.scopes import AccountScope

MAX_SHOWN, MAX_SCANNED = 8, 60
VERBS = {CREATE: "created", DELETE: "deleted"}
# By table: the label of a row, and the page that lists it, if any.
LIST_PAGES = {
    "webhooks": ("webhook", "console.show_webhooks"),
    "workflows": ("workflow", "console.show_workflows"),
    "users": ("user", "console.show_team"),
    "groups": ("group", "console.show_groups"),
    "group_members": ("group member", "console.show_groups"),
    "invitations": ("invitation", "console.show_invitations"),
    "api_keys": ("API key", "console.show_keys"),
    "accounts": ("account", None),
    "provider_settings": ("identity provider", "console.show_sso"),
    "identities": ("user identity", None),
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


def changes(scope: AccountScope, collections: Sequence[Definition]) -> list[Change]:
    """The newest changes; of records, only those of `collections`."""
    by_table, changes = ByFormerName(collections), []
    for row in recent.changes(scope.account.id, MAX_SCANNED):
        collection = by_table.find(row.table_name, row.occurred_at)
        if collection is not None or not row.table_name.startswith(tables.PREFIX):
            label, target = (
                _record_link(scope, collection, row) if collection else _list_link(scope, row)
            )
            verb, actor = VERBS.get(row.operation, "changed"), row.user_email or row.user_id
            changes.append(Change(label, verb, actor, row.occurred_at, target))
    return changes[:MAX_SHOWN]


def _record_link(scope: AccountScope, collection: Definition, row: Any) -> tuple[str, str | None]:
    record_id, is_deleted = row.record_id, row.operation == DELETE
    label, url_args = f"record of {collection.name}", {**scope.url_args, "name": collection.name}
    if is_deleted or not record_id:
        return label, url_for("console.show_records", **url_args)
    return label, url_for("console.show_record", record_id=record_id, **url_args)


def _list_link(scope: AccountScope, row: Any) -> tuple[str, str | None]:
    table: str = row.table_name
    label, endpoint = LIST_PAGES.get(table, (table.replace("_", " "), None))
    if endpoint is None or (table in WITHOUT_URL_ARGS and scope.by.is_superadmin):
        return label, None
    return label, url_for(endpoint, **({} if table in WITHOUT_URL_ARGS else scope.url_args))
