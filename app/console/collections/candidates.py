"""Accounts, users and records to choose from, for scripts that search while one types."""

from __future__ import annotations

from flask import request

from app.accounts import tenants
from app.auth import principal as principals
from app.auth.principal import AccountRef
from app.collections.definitions import Definition
from app.console.collections.listing import COLLECTION, load
from app.console.people import user_options
from app.console.records import references
from app.console.shell import guard, lists
from app.console.shell.access import SUPERADMIN
from app.console.shell.blueprint import page
from app.types import JSONObject

MAX_OPTIONS = 10
Options = dict[str, list[JSONObject]]


@page("/console/accounts/options", role=SUPERADMIN)
def show_account_options() -> Options:
    """Codes and names of active accounts."""
    params = {"skip": 0, "limit": MAX_OPTIONS, "sort_by": "name", "sort_order": "asc"}
    accounts, _ = tenants.page({**params, "search": _text(), "is_active": True})
    return {
        "options": [
            {"id": one.account_code, "label": _label(one.name, one.account_code)}
            for one in accounts
        ]
    }


@page(f"{COLLECTION}/explain/users", role=SUPERADMIN)
def show_user_options(collection_id: str) -> Options:
    """Users of the account that the form names."""
    load(collection_id)
    account = _account()
    return {"options": user_options.search(account.id, _text()) if account else []}


@page(f"{COLLECTION}/explain/records", role=SUPERADMIN, retry_stale=True)
def show_record_options(collection_id: str) -> Options:
    """Records of the collection in the account that the form names."""
    _, collection = load(collection_id)
    account = _account()
    by = guard.require_caller().acting_in(account) if account else None
    hits = references.search(collection, _text(), by) if by else None
    return {"options": [{"id": id, "label": label} for id, label in hits or ()]}


def account_label(reference: str) -> str:
    """The name of the account that a form names; empty if there is none."""
    account = principals.find_active_account(reference) if reference else None
    return _label(account.name, account.account_code) if account else ""


def record_label(collection: Definition, reference: str, record_id: str) -> str:
    """The label of a record that a form names; empty if there is none."""
    account = principals.find_active_account(reference) if reference else None
    if account is None or not record_id:
        return ""
    by = guard.require_caller().acting_in(account)
    return references.labels(collection, [record_id.lower()], by).get(record_id.lower(), "")


def _label(name: str, code: str) -> str:
    return f"{name} ({code})"


def _account() -> AccountRef | None:
    reference = request.args.get("account", "").strip()[:200]
    return principals.reload_active_account(reference) if reference else None


def _text() -> str:
    return request.args.get("text", "").strip()[: lists.MAX_INPUT_LENGTH]
