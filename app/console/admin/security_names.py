"""Names for the events of the security log."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from app.collections import table as tables
from app.console.admin import audit_columns, audit_names
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
    "console": lazy_gettext("console"),
}


def of_kind(kind: str) -> str:
    if kind in KINDS:
        return str(KINDS[kind])
    noun, _, verb = kind.rpartition(".")
    names = {one.event: one.singular for one in audit_names.nouns().values()}
    return gettext("%(noun)s %(verb)s", noun=names.get(noun, noun), verb=VERBS.get(verb, verb))


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
    """How personal data was read."""
    return str(PATHS.get(path or "", path or ""))
