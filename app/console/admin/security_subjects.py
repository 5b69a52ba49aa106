"""What the events of the security log are about: the names and pages that the audit log shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from flask import url_for

from app.audit.append import DELETE
from app.audit.service import Change
from app.collections import table as tables
from app.console.admin import audit_names
from app.console.admin.audit_names import Names, Subject
from app.console.shell.scopes import AccountScope
from app.types import JSONMapping
from app.web.languages import gettext


def of_events(events: Sequence[JSONMapping], scope: AccountScope) -> Mapping[int, Subject]:
    """The subjects by the number of the event, in a bounded number of statements."""
    changes = {one["number"]: _change(one, scope) for one in events if _is_named(one)}
    names = Names(list(changes.values()), scope.by)
    subjects = {number: names.subject(change) for number, change in changes.items()}
    # A label could show personal data, and each look at the log would add a read to it.
    records = {
        one["number"]: Subject(
            gettext("Record"), f"…{one['target_id'][-8:]}", _events_url(one, scope)
        )
        for one in events
        if one["target_id"] and one["target_type"].startswith(tables.PREFIX)
    }
    return subjects | records


def _is_named(event: JSONMapping) -> bool:
    table, id = event["target_type"], event["target_id"]
    is_own = table == "users" and id == event["user_id"]
    is_named = audit_names.name_column(table) is not None and not audit_names.is_shared(table)
    return bool(id) and not is_own and (is_named or table == "group_members")


def _change(event: JSONMapping, scope: AccountScope) -> Change:
    change = audit_names.of_row(scope.account.id, event["target_type"], event["target_id"])
    is_deleted = event["kind"].endswith(".deleted")
    return replace(change, operation=DELETE) if is_deleted else change


def _events_url(event: JSONMapping, scope: AccountScope) -> str:
    """All events about a record."""
    filters = {"target_type": event["target_type"], "record_id": event["target_id"]}
    return url_for("console.show_security_log", **scope.url_args, **filters)
