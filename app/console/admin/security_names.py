"""Names for the events of the security log, for what they are about, and for where logs begin."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from flask import url_for

from app import clock
from app.audit.append import DELETE
from app.audit.chain import signing
from app.audit.service import Change
from app.collections import table as tables
from app.console.admin import audit_columns, audit_names
from app.console.admin.audit_names import Names, Subject
from app.console.shell.scopes import AccountScope
from app.errors import NotFound
from app.portability.retention import policy as policies
from app.types import JSONMapping
from app.web.languages import gettext, lazy_gettext

VARIABLE = re.compile(r"<[^>]*>")
VERBS: Mapping[str, object] = {
    "created": lazy_gettext("created"),
    "changed": lazy_gettext("changed"),
    "deleted": lazy_gettext("deleted"),
}
KINDS: Mapping[str, object] = {
    "sign_in.succeeded": lazy_gettext("Signed in"),
    "sign_in.failed": lazy_gettext("Sign-in failed"),
    "sign_in.locked": lazy_gettext("Sign-in locked after too many tries"),
    "sign_in.suppressed": lazy_gettext("Further failed sign-ins, only counted"),
    "sessions.ended": lazy_gettext("Sessions ended"),
    "refresh_token.reused": lazy_gettext("Refresh token used twice"),
    "password.changed": lazy_gettext("Password changed"),
    "personal_data.read": lazy_gettext("Personal data read"),
    "operator.records_read": lazy_gettext("Records read by the operator"),
    "operator.request": lazy_gettext("Request by the operator"),
    "extension.as_operator": lazy_gettext("Extension with the operator's rights"),
    "portal.created": lazy_gettext("Portal opened for a product"),
    "file_link.created": lazy_gettext("Link to a file created"),
    "file_link.used": lazy_gettext("File downloaded by a link"),
    "file_link.ended": lazy_gettext("Links to a file ended"),
    "log.erased": lazy_gettext("Personal data erased from this log"),
    "log.cut": lazy_gettext("Older events removed by retention"),
}
PATHS: Mapping[str, object] = {
    "get": lazy_gettext("one record"),
    "list": lazy_gettext("list"),
    "expand": lazy_gettext("reference"),
    "export": lazy_gettext("export"),
    "aggregate": lazy_gettext("aggregation"),
    "history": lazy_gettext("history"),
    "audit": lazy_gettext("audit log"),
    "bundle": lazy_gettext("account export"),
    "changes": lazy_gettext("change feed"),
    "realtime": lazy_gettext("live stream"),
    "write": lazy_gettext("reply to a change"),
    "webhook": lazy_gettext("webhook"),
    "workflow": lazy_gettext("workflow"),
    "file": lazy_gettext("file"),
    "console": lazy_gettext("browser"),
}


def of_kind(kind: str) -> str:
    if kind in KINDS:
        return str(KINDS[kind])
    subject, _, verb = kind.rpartition(".")
    nouns = audit_names.nouns().values()
    noun = next((one.singular for one in nouns if one.event == subject), subject)
    return gettext("%(noun)s %(verb)s", noun=noun, verb=VERBS.get(verb, verb))


def of_route(route: str) -> str:
    """A route without the names of its variables."""
    return VARIABLE.sub("…", route)


def of_fields(table: str, fields: Sequence[str]) -> list[str]:
    """The labels of changed columns; fields of records have their own names."""
    if table.startswith(tables.PREFIX):
        return list(fields)
    # "Email verified at" says nothing that "Email verified" does not.
    doubled = {f"{field}_at" for field in fields}
    return [audit_columns.label(field) for field in fields if field not in doubled]


def of_path(path: str | None) -> str:
    """The way by which personal data was read, in words."""
    return str(PATHS.get(path or "", path or ""))


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


@dataclass(frozen=True)
class LogStart:
    """The signed start of a log, and the rule that cuts it."""

    entry_id: int
    removed: int
    created_at: datetime
    is_signed: bool
    days: int | None
    """The present policy; None if the log is no longer cut."""


def log_start(start: JSONMapping | None, account_id: str | None, rule: str) -> LogStart | None:
    """A start as pages show it; `rule` is the property of the policy that cuts this log."""
    if start is None or account_id is None:
        return None
    try:
        days = getattr(policies.of_account(account_id), rule)
    except NotFound:  # the log outlives the account
        days = None
    created_at, is_signed = clock.parse(start["created_at"]), signing.fault(start) is None
    return LogStart(start["entry_id"], start["removed"], created_at, is_signed, days)
