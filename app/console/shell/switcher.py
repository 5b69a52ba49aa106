"""The account that a superadmin works in, which stays as one moves between areas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from flask import request, session

from app.auth import principal as principals
from app.auth.principal import Principal

KEY, MAX_RECENT, MAX_NAME = "accounts", 5, 30
"""Tenants choose the names, and browsers drop a cookie of more than 4 KiB."""


class RecentAccount(NamedTuple):
    """An account that this browser has worked in."""

    id: str
    name: str


def remember(account_id: str, name: str) -> None:
    others = [one for one in recent() if one.id != account_id]
    shown = name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 1]}…"
    accounts = [(account_id, shown), *others][:MAX_RECENT]
    _store(accounts)


def forget(account_id: str) -> None:
    """Drop an account that is no longer there."""
    _store([one for one in recent() if one.id != account_id])


def forget_all() -> None:
    """Drop all accounts, as another user signs in."""
    session.pop(KEY, None)


def recent() -> Sequence[RecentAccount]:
    """The accounts that this browser has worked in, the latest first."""
    return [RecentAccount(*one) for one in session.get(KEY, ())]


def current(caller: Principal) -> RecentAccount | None:
    """The account that the navigation leads to: the caller's own, or a superadmin's latest."""
    if not caller.is_superadmin:
        return RecentAccount(caller.home.id, caller.home.name) if caller.home else None
    return next(iter(recent()), None)


def home_account_id(caller: Principal) -> str | None:
    """The account that the home of an area leads to; None if a superadmin is to choose."""
    if not caller.is_superadmin:
        return caller.require_account_id()
    latest = None if request.args else current(caller)  # `?view=all` or a search: the choice
    return latest.id if latest else None


def current_code() -> str:
    """The code of the account that this browser works in, for a form; empty without one."""
    latest = next(iter(recent()), None)
    account = principals.find_active_account(latest.id) if latest else None
    return account.account_code if account else ""


def _store(accounts: Sequence[tuple[str, str]]) -> None:
    stored = [list(one) for one in accounts]
    if stored != session.get(KEY, []):  # else no cookie
        session[KEY] = stored
