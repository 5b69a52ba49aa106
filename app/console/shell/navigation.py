"""The sidebar and the header around each page, by role."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from flask import request, url_for

from app.auth.principal import Principal
from app.console.shell import switcher
from app.console.shell.switcher import RecentAccount
from app.web.languages import gettext

HOME = "/console"
JOB = "console.show_job"


@dataclass(frozen=True)
class Entry:
    """A page of the sidebar; `prefixes` are the paths of the pages below it."""

    name: str
    icon: str
    url: str
    prefixes: Sequence[str] = ()


@dataclass(frozen=True)
class Group:
    """Entries under a title."""

    title: str
    entries: Sequence[Entry]


def groups(caller: Principal) -> Sequence[Group]:
    """The groups of the sidebar."""
    found = [Group("", [_entry(gettext("Home"), "home", "show_home")])]
    if caller.is_admin:
        found += _account_groups(caller)
    if caller.is_superadmin:
        found.append(Group(gettext("Instance"), list(_instance_entries())))
    if not caller.is_admin:
        at = f"{HOME}/accounts/{caller.account_id}/keys"
        found.append(Group("", [_entry(gettext("API keys"), "key", "show_keys", at)]))
    return found


def current_entry(shown: Sequence[Group]) -> Entry | None:
    """The entry whose pages the address belongs to: the one with the longest matching path."""
    path = request.path.rstrip("/")
    matches = [
        (len(prefix), entry)
        for group in shown
        for entry in group.entries
        for prefix in (entry.url, *entry.prefixes)
        if path == prefix or (path.startswith(f"{prefix}/") and prefix != HOME)
    ]
    return max(matches, key=lambda match: match[0])[1] if matches else None


def _entry(name: str, icon: str, endpoint: str, *prefixes: str, **url_args: Any) -> Entry:
    return Entry(name, icon, url_for(f"console.{endpoint}", **url_args), prefixes)


def _account_groups(caller: Principal) -> Iterator[Group]:
    account = switcher.current(caller)
    if caller.is_superadmin and account is None:
        pages = ("show_records_home", "show_webhooks_home", "show_workflows_home", "show_sso")
        args: dict[str, str] = {}
    else:
        pages = ("show_record_collections", "show_webhooks", "show_workflows", "show_providers")
        args = {"account_id": account.id} if account else {}
    own = args if caller.is_superadmin else {}
    # An admin's pages also have addresses with the account.
    at = f"{HOME}/accounts/{account.id}" if account else HOME
    records, webhooks, workflows, sign_in = pages
    yield Group(
        gettext("Data"), [_entry(gettext("Records"), "table", records, "/console/records", **args)]
    )
    yield Group(
        gettext("Automation"),
        [
            _entry(gettext("Webhooks"), "webhook", webhooks, "/console/webhooks", **args),
            _entry(gettext("Workflows"), "sitemap", workflows, "/console/workflows", **args),
        ],
    )
    people = [
        _entry(gettext("Team"), "users-group", "show_team", f"{at}/team", **own),
        _entry(gettext("Groups"), "folder", "show_groups", f"{at}/groups", **own),
        _entry(gettext("Single sign-on"), "lock", sign_in, "/console/sso", **args),
        _entry(gettext("API keys"), "key", "show_keys", f"{at}/keys", **own),
    ]
    yield Group(gettext("People and access"), people)
    settings = "show_settings" if args else "show_settings_home"
    usage = "show_usage" if args else "show_usage_home"
    entries = [
        _entry(gettext("Settings"), "settings", settings, "/console/settings", **args),
        _entry(gettext("Usage"), "heart-rate-monitor", usage, "/console/usage", **args),
    ]
    if not caller.is_superadmin:
        entries.append(_entry(gettext("Audit log"), "history", "show_audit_log"))
    if args:
        log = "/console/security-log"
        entries.append(_entry(gettext("Security log"), "shield", "show_security_log", log, **args))
    yield Group(gettext("Account"), entries)


def _instance_entries() -> Iterator[Entry]:
    yield _entry(gettext("Accounts"), "building", "show_accounts")
    yield _entry(gettext("Users"), "users", "show_users")
    yield _entry(gettext("Roles"), "shield", "show_roles")
    yield _entry(gettext("Collections"), "database", "show_collections")
    yield _entry(gettext("Audit log"), "history", "show_audit_log")
    below = [f"{HOME}/{name}" for name in ("health", "migrations", "outbox")]
    yield _entry(gettext("Jobs and health"), "activity", "show_jobs", *below)


class Shell:
    """What surrounds a page for its caller."""

    def __init__(self, caller: Principal) -> None:
        self._caller = caller

    @cached_property
    def groups(self) -> Sequence[Group]:
        """The groups of the sidebar."""
        return groups(self._caller)

    @cached_property
    def current(self) -> Entry | None:
        """The entry of the sidebar that the page belongs to."""
        return current_entry(self.groups)

    @property
    def is_instance_wide(self) -> bool:
        """Whether a superadmin's page is about the instance, and not about an account."""
        of_account = "account_id" in (request.view_args or {}) and request.endpoint != JOB
        if not self._caller.is_superadmin or of_account:
            return False
        pages = (*self.groups[0].entries, *self.groups[-1].entries)
        return any(self.current is entry for entry in pages)

    @property
    def account(self) -> RecentAccount | None:
        """The account that the navigation leads to."""
        return switcher.current(self._caller)

    @property
    def page_account(self) -> RecentAccount | None:
        """The same, unless the page is about the instance."""
        return None if self.is_instance_wide else self.account

    @property
    def recent(self) -> Sequence[RecentAccount]:
        """The accounts that a superadmin may switch to at once."""
        return switcher.recent() if self._caller.is_superadmin else ()
