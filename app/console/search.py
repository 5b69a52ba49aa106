"""The global search; each query scans a limited number of rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from flask import render_template, request, url_for

from app import db
from app.accounts.models import Account, Group, User
from app.auth import principal as principals
from app.auth.models import ApiKey
from app.collections import access, definitions
from app.console.records import search
from app.console.shell import guard, lists, navigation
from app.console.shell.access import USER
from app.console.shell.blueprint import page
from app.console.shell.lists import Listing
from app.console.shell.scopes import AccountScope
from app.context import shown_accounts
from app.db import filters
from app.types import JSONObject
from app.web.languages import gettext, lazy_gettext
from app.webhooks.models import Webhook
from app.workflows.models import Workflow

MAX_SHOWN, MAX_SUGGESTED = 5, 12
ACCOUNT_FILTER = {"account": lazy_gettext("Account, for its records")}
MAX_SCANNED = 2_000  # newest rows of each kind; records have their own limit


@dataclass(frozen=True)
class Hit:
    """A search result and its page."""

    name: str
    note: str
    target: str


@dataclass(frozen=True)
class Section:
    """The results of one kind; `rest` is the page that lists all of them."""

    title: str
    hits: Sequence[Hit]
    more: bool = False
    rest: str | None = None
    scanned: int | None = None
    """The number of rows scanned, if there are more."""


@page("/console/search", role=USER, retry_stale=True)
def show_search() -> str:
    superadmin = guard.require_caller().is_superadmin
    listing = lists.from_request(
        "console.show_search", texts=ACCOUNT_FILTER if superadmin else None
    )
    # Without a choice, the search is over all accounts, and the records of the current one.
    is_implied = superadmin and "account" not in request.args
    if is_implied and (code := navigation.current_code()):
        listing.filters["account"] = code
    text, scope = listing.search, _scope(listing)
    only = scope.account.id if scope and not is_implied else None
    sections = list(_sections(text, scope, only)) if text and not listing.errors else []
    return render_template(
        "console/search.html",
        listing=listing,
        search=text,
        scope=scope,
        found=[section for section in sections if section.hits or section.scanned],
        collections=_record_lists(scope) if scope and not text else (),
    )


def _scope(listing: Listing) -> AccountScope | None:
    """The account to search; None for all."""
    caller, reference = guard.require_caller(), listing.filters.get("account")
    if not caller.is_superadmin:
        return AccountScope(caller.account, caller) if caller.account else None
    account = principals.find_active_account(reference) if reference else None
    if reference and account is None:
        listing.errors["account"] = [gettext("No active account with this id.")]
    return AccountScope(account, caller.acting_in(account)) if account else None


def _record_lists(scope: AccountScope) -> Sequence[Hit]:
    """The collections whose records the caller may list."""
    opened = [
        one for one in definitions.get_all(with_views=True) if access.is_open(scope.by, one, "list")
    ]
    return [
        Hit(one.name, "", url_for("console.show_records", name=one.name, **scope.url_args))
        for one in opened[:MAX_SUGGESTED]
    ]


def _sections(text: str, scope: AccountScope | None, only: str | None) -> Iterator[Section]:
    """The results; `only` is the account that they are limited to."""
    caller, account_id = guard.require_caller(), scope.account.id if scope else None
    if caller.is_superadmin and only is None:
        yield _accounts(text)
    if caller.is_admin:
        within = only if caller.is_superadmin else account_id
        yield _collections(text, scope)
        yield _users(text, within)
        yield _webhooks(text, within)
        yield _workflows(text, within)
        yield _groups(text, account_id or guard.own_account_id())
    yield _keys(text, account_id or guard.own_account_id())
    if scope is not None:
        yield from _records(text, scope)


def _records(text: str, scope: AccountScope) -> Iterator[Section]:
    skipped = []
    for result in search.search(text, scope):
        if result.scanned == 0:
            skipped.append(Hit(result.collection, "", result.rest))
            continue
        hits = [Hit(name, "", target) for name, target in result.hits]
        title = gettext("Records of %(collection)s", collection=result.collection)
        yield Section(title, hits[:MAX_SHOWN], len(hits) > MAX_SHOWN, result.rest, result.scanned)
    title = gettext("Collections that were not searched, each with its own search")
    yield Section(title, skipped)


def _rows(text: str, model: Any, names: Sequence[str], *where: Any) -> Sequence[Any]:
    """Up to one more matching row than is shown, newest first."""
    newest = sa.select(model).where(*where).order_by(model.id.desc()).limit(MAX_SCANNED).subquery()
    tests = [filters.has_text(newest.c[name], text) for name in names]
    query = sa.select(newest).where(sa.or_(*tests)).order_by(newest.c.id.desc())
    rows = db.connection().execute(query.limit(MAX_SHOWN + 1)).all()
    for row in rows:
        shown_accounts.note(row._mapping.get("account_id"))
    return rows


def _section(title: str, hits: list[Hit], rest: str | None = None) -> Section:
    return Section(title, hits[:MAX_SHOWN], len(hits) > MAX_SHOWN, rest)


def _account_filter(model: Any, account_id: str | None) -> list[sa.ColumnElement[bool]]:
    return [] if account_id is None else [model.account_id == account_id]


def _accounts(text: str) -> Section:
    rows = _rows(text, Account, ("name", "slug", "account_code"), Account.closed_at.is_(None))
    hits = [
        Hit(row.name, row.slug, url_for("console.show_account", account_id=row.id)) for row in rows
    ]
    return _section(gettext("Accounts"), hits, url_for("console.show_accounts", search=text))


def _collections(text: str, scope: AccountScope | None) -> Section:
    superadmin, hits = guard.require_caller().is_superadmin, []
    for collection in definitions.get_all(with_views=True):
        if text.lower() not in collection.name.lower():
            continue
        if scope and access.is_open(scope.by, collection, "list"):
            target = url_for("console.show_records", name=collection.name, **scope.url_args)
        elif superadmin:
            target = url_for("console.show_collection", collection_id=collection.id)
        else:
            continue
        hits.append(Hit(collection.name, "", target))
    return _section(gettext("Collections"), hits)


def _users(text: str, account_id: str | None) -> Section:
    superadmin = guard.require_caller().is_superadmin
    endpoint, list_endpoint = ("user", "users") if superadmin else ("member", "team")
    hits = [
        Hit(
            row.email or row.name,  # services have a name alone
            row.name or "" if row.email else "",
            url_for(f"console.show_{endpoint}", user_id=row.id),
        )
        for row in _rows(text, User, ("email", "name"), *_account_filter(User, account_id))
    ]
    return _section(gettext("Users"), hits, url_for(f"console.show_{list_endpoint}", search=text))


def _webhooks(text: str, account_id: str | None) -> Section:
    rows = _rows(text, Webhook, ("url", "collection"), *_account_filter(Webhook, account_id))
    page = "console.show_webhook"
    hits = [
        Hit(row.url, row.collection, url_for(page, account_id=row.account_id, webhook_id=row.id))
        for row in rows
    ]
    return _section(gettext("Webhooks"), hits)


def _workflows(text: str, account_id: str | None) -> Section:
    hits = []
    for row in _rows(
        text, Workflow, ("name", "description"), *_account_filter(Workflow, account_id)
    ):
        url_args = {"account_id": row.account_id, "kind": row.kind, "workflow_id": row.id}
        hits.append(Hit(row.name, row.trigger_type, url_for("console.show_workflow", **url_args)))
    return _section(gettext("Workflows"), hits)


def _groups(text: str, account_id: str) -> Section:
    # Within one account: no index orders the groups of all accounts by age.
    rows = _rows(text, Group, ("name", "description"), *_account_filter(Group, account_id))
    page = "console.show_group"
    hits = [
        Hit(row.name, row.description or "", url_for(page, group_id=row.id, **_url_args(row)))
        for row in rows
    ]
    return _section(gettext("Groups"), hits)


def _keys(text: str, account_id: str) -> Section:
    caller, conditions = guard.require_caller(), _account_filter(ApiKey, account_id)
    if not caller.is_admin:
        conditions.append(ApiKey.created_by == caller.user_id)
    rows = _rows(text, ApiKey, ("name", "description"), *conditions)
    page = "console.show_keys"
    hits = [Hit(row.name, row.description or "", url_for(page, **_url_args(row))) for row in rows]
    return _section(gettext("API keys"), hits, None if caller.is_superadmin else url_for(page))


def _url_args(row: Any) -> JSONObject:
    return {"account_id": row.account_id} if guard.require_caller().is_superadmin else {}
