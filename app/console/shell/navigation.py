"""The sidebar and the header around each page, by role: theme, menu, and the account it leads to.

A superadmin works in an account that stays as one moves between areas.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from flask import Flask, current_app, request, session

from app.auth import principal as principals
from app.auth.principal import Principal
from app.console.shell.access import ADMIN, HOME, SUPERADMIN, Role
from app.types import cached_property
from app.web.languages import lazy_gettext

THEME_COOKIE, THEME_DAYS = "atrium_theme", 365
AUTO_THEME = "auto"
THEMES: Mapping[str, tuple[str, str]] = {
    AUTO_THEME: (lazy_gettext("System"), "device-desktop"),
    "light": (lazy_gettext("Light"), "sun"),
    "dark": (lazy_gettext("Dark"), "moon"),
}
"""Each theme's name and icon."""

JOB = "console.show_job"
IN_ACCOUNT = "/console/accounts"
ACCOUNTS_KEY, MAX_RECENT, MAX_NAME = "accounts", 5, 30
"""Tenants choose the names, and browsers drop a cookie of more than 4 KiB."""


class Section(IntEnum):
    """The groups of the sidebar, in order."""

    TOP = 0
    DATA = 1
    AUTOMATION = 2
    PEOPLE = 3
    ACCOUNT = 4
    INSTANCE = 5


TOP, DATA, AUTOMATION, PEOPLE, ACCOUNT, INSTANCE = Section
TITLES = {
    DATA: lazy_gettext("Data"),
    AUTOMATION: lazy_gettext("Automation"),
    PEOPLE: lazy_gettext("People and access"),
    ACCOUNT: lazy_gettext("Account"),
    INSTANCE: lazy_gettext("Instance"),
}


@dataclass(frozen=True)
class MenuItem:
    """The place of a page in the sidebar, as its `@page` declares it."""

    section: Section
    position: int
    name: str
    icon: str
    below: tuple[str, ...] = ()
    """Paths of pages that belong to it, beside those that begin with its own."""
    needs_account: bool = False
    """Whether superadmins see it only once they have chosen an account."""
    of_superadmins: tuple[Section, int] | None = None
    """Section and position for superadmins, if theirs differ."""


@dataclass(frozen=True)
class _Page:
    item: MenuItem
    path: str  # up to the account, if it names one
    role: Role
    names_account: bool  # the path goes on with the account
    in_account: bool  # it has a second path, within the account


_pages: list[_Page] = []


@dataclass(frozen=True)
class Entry:
    """A page of the sidebar; `prefixes` are the paths of the pages that belong to it."""

    name: str
    icon: str
    url: str
    prefixes: Sequence[str]


@dataclass(frozen=True)
class Group:
    """Entries under a title."""

    title: str
    entries: Sequence[Entry]


def add(item: MenuItem, path: str, role: Role, *, in_account: bool) -> None:
    """Add a page to the sidebar."""
    base, account, _ = path.partition("/<uuid:account_id>")
    _pages.append(_Page(item, base, role, bool(account), in_account))


def add_to(app: Flask, item: MenuItem, path: str, role: Role) -> None:
    """Add a page to the sidebar of one application; superadmins open it within an account."""
    page = _Page(item, path, role, names_account=False, in_account=True)
    app.extensions.setdefault("atrium.menu", []).append(page)


def groups(caller: Principal) -> Sequence[Group]:
    account = current_account(caller)
    found: list[tuple[tuple[Section, int], Entry]] = []
    for page in (*_pages, *current_app.extensions.get("atrium.menu", ())):
        item, url, prefixes = page.item, page.path, [page.path, *page.item.below]
        is_hidden = (page.role is SUPERADMIN and not caller.is_superadmin) or (
            page.role is ADMIN and not caller.is_admin
        )
        if is_hidden or (item.needs_account and account is None):
            continue
        if account and page.names_account:
            url = f"{page.path}/{account.id}"
        elif account and page.in_account:
            within = f"{IN_ACCOUNT}/{account.id}{page.path.removeprefix(HOME)}"
            # Their own account is the system account, which is another one.
            url, prefixes = (within, [within]) if caller.is_superadmin else (url, [url, within])
        place = (caller.is_superadmin and item.of_superadmins) or (item.section, item.position)
        entry = Entry(str(item.name), item.icon, f"{request.root_path}{url}", prefixes)
        found.append((place, entry))
    found.sort(key=itemgetter(0))
    return [
        # Others have so few pages that they need no titles.
        Group(str(TITLES.get(section, "")) if caller.is_admin else "", [one for _, one in entries])
        for section, entries in groupby(found, key=lambda one: one[0][0])
    ]


def current_entry(shown: Sequence[Group]) -> Entry | None:
    """The entry whose pages the address belongs to: the one with the longest matching path."""
    path = request.path.rstrip("/")
    matches = [
        (len(prefix), entry)
        for group in shown
        for entry in group.entries
        for prefix in entry.prefixes
        if path == prefix or (path.startswith(f"{prefix}/") and prefix != HOME)
    ]
    return max(matches, key=itemgetter(0))[1] if matches else None


class Shell:
    """The menu and the other parts around a page, for its caller."""

    def __init__(self, caller: Principal) -> None:
        self._caller = caller

    @cached_property
    def groups(self) -> Sequence[Group]:
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
        return current_account(self._caller)

    @property
    def page_account(self) -> RecentAccount | None:
        """The account, unless the page is about the instance."""
        return None if self.is_instance_wide else self.account

    @property
    def recent(self) -> Sequence[RecentAccount]:
        """The accounts that a superadmin may switch to at once."""
        return recent_accounts() if self._caller.is_superadmin else ()


def chosen_theme() -> str:
    theme = request.cookies.get(THEME_COOKIE, AUTO_THEME)
    return theme if theme in THEMES else AUTO_THEME


class RecentAccount(NamedTuple):
    """An account that this browser has worked in."""

    id: str
    name: str


def enter_account(account_id: str, name: str) -> None:
    others = [one for one in recent_accounts() if one.id != account_id]
    shown = name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 1]}…"
    accounts = [(account_id, shown), *others][:MAX_RECENT]
    _store(accounts)


def forget_account(account_id: str) -> None:
    """Drop an account that is no longer there."""
    _store([one for one in recent_accounts() if one.id != account_id])


def forget_accounts() -> None:
    """Drop all accounts, as another user signs in."""
    session.pop(ACCOUNTS_KEY, None)


def recent_accounts() -> Sequence[RecentAccount]:
    """The accounts that this browser has worked in, the latest first."""
    return [RecentAccount(*one) for one in session.get(ACCOUNTS_KEY, ())]


def current_account(caller: Principal) -> RecentAccount | None:
    """The account that the navigation leads to: the caller's own, or a superadmin's latest."""
    if not caller.is_superadmin:
        return RecentAccount(caller.home.id, caller.home.name) if caller.home else None
    return next(iter(recent_accounts()), None)


def home_account_id(caller: Principal) -> str | None:
    """The account that the home of an area leads to; None if a superadmin is to choose."""
    if not caller.is_superadmin:
        return caller.require_account_id()
    latest = (
        None if request.args else current_account(caller)
    )  # `?view=all` or a search: the choice
    return latest.id if latest else None


def current_code() -> str:
    """The code of the account that this browser works in, for a form; empty without one."""
    latest = next(iter(recent_accounts()), None)
    account = principals.find_active_account(latest.id) if latest else None
    return account.account_code if account else ""


def _store(accounts: Sequence[tuple[str, str]]) -> None:
    stored = [list(one) for one in accounts]
    if stored != session.get(ACCOUNTS_KEY, []):  # else no cookie
        session[ACCOUNTS_KEY] = stored
