"""One search across what the caller may see: bounded, so that no page reads a whole table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from flask import render_template, url_for

from app import db
from app.accounts.models import Account, Group, User
from app.auth import principal as principals
from app.auth.models import ApiKey
from app.collections import access, definition
from app.console.records import search
from app.console.shell import guard, lists
from app.console.shell.blueprint import blueprint
from app.console.shell.lists import Listing
from app.console.shell.scopes import Place
from app.rest.access import public
from app.webhooks.models import Webhook
from app.workflows.models import Workflow

SHOWN = 5
OF_SUPERADMINS = {"account": "Account, for its records"}
LOOKED_AT = 2_000  # rows of each kind, the newest; records have a bound of their own


@dataclass(frozen=True)
class Hit:
    """Something that was found, and the page that shows it."""

    name: str
    note: str
    target: str


@dataclass(frozen=True)
class Found:
    """What was found of one kind; `rest` is the page that lists more of it."""

    title: str
    hits: Sequence[Hit]
    more: bool = False
    rest: str | None = None
    looked_at: int | None = None
    """How many of them were looked at, where there are more."""


@blueprint.get("/console/search")
@public
@guard.steady
def show_search() -> str:
    """What is found of a text."""
    superadmin = guard.known_caller().is_superadmin
    listing = lists.asked_for("console.show_search", texts=OF_SUPERADMINS if superadmin else None)
    text, place = listing.search, _place(listing)
    found = list(_found(text, place)) if text and not listing.errors else []
    return render_template(
        "console/search.html",
        listing=listing,
        search=text,
        place=place,
        found=[one for one in found if one.hits or one.looked_at],
    )


def _place(listing: Listing) -> Place | None:
    """The account to search in, None for all."""
    caller, named = guard.known_caller(), listing.filters.get("account")
    if not caller.is_superadmin:
        return Place(caller.account, caller) if caller.account else None
    account = principals.find_active_account(named) if named else None
    if named and account is None:
        listing.errors["account"] = ["There is no such active account."]
    return Place(account, caller.acting_in(account)) if account else None


def _found(text: str, place: Place | None) -> Iterator[Found]:
    caller, account_id = guard.known_caller(), place.account.id if place else None
    if caller.is_superadmin and place is None:
        yield _accounts(text)
    if caller.is_admin:
        yield _collections(text, place)
        yield _users(text, account_id)
        yield _webhooks(text, account_id)
        yield _workflows(text, account_id)
        yield _groups(text, account_id or guard.own_account())
    yield _keys(text, account_id or guard.own_account())
    if caller.is_admin and place is not None:
        yield from _records(text, place)


def _records(text: str, place: Place) -> Iterator[Found]:
    left_out = []
    for one in search.search(text, place):
        if one.looked_at == 0:
            left_out.append(Hit(one.collection, "", one.rest))
            continue
        hits = [Hit(name, "", target) for name, target in one.hits]
        title = f"Records of {one.collection}"
        yield Found(title, hits[:SHOWN], len(hits) > SHOWN, one.rest, one.looked_at)
    yield Found("Collections too many to look through, each with a search of its own", left_out)


def _rows(text: str, model: Any, names: Sequence[str], *where: Any) -> Sequence[Any]:
    """Some more rows than are shown of those whose texts contain the search, the newest first."""
    newest = sa.select(model).where(*where).order_by(model.id.desc()).limit(LOOKED_AT).subquery()
    tests = [newest.c[name].icontains(text, autoescape=True) for name in names]
    chosen = sa.select(newest).where(sa.or_(*tests)).order_by(newest.c.id.desc())
    return db.connection().execute(chosen.limit(SHOWN + 1)).all()


def _told(title: str, hits: list[Hit], rest: str | None = None) -> Found:
    return Found(title, hits[:SHOWN], len(hits) > SHOWN, rest)


def _mine(model: Any, account_id: str | None) -> list[Any]:
    return [] if account_id is None else [model.account_id == account_id]


def _accounts(text: str) -> Found:
    rows = _rows(text, Account, ("name", "slug", "account_code"), Account.closed_at.is_(None))
    hits = [
        Hit(row.name, row.slug, url_for("console.show_account", account_id=row.id)) for row in rows
    ]
    return _told("Accounts", hits, url_for("console.show_accounts", search=text))


def _collections(text: str, place: Place | None) -> Found:
    superadmin, hits = guard.known_caller().is_superadmin, []
    for one in definition.get_all():
        if text.lower() not in one.name.lower():
            continue
        if place and access.is_open(place.by, one, "list"):
            target = url_for("console.show_records", name=one.name, **place.at)
        elif superadmin:
            target = url_for("console.show_collection", collection_id=one.id)
        else:
            continue
        hits.append(Hit(one.name, "", target))
    return _told("Collections", hits)


def _users(text: str, account_id: str | None) -> Found:
    superadmin = guard.known_caller().is_superadmin
    one, every = ("user", "users") if superadmin else ("member", "team")
    hits = [
        Hit(row.email, row.name or "", url_for(f"console.show_{one}", user_id=row.id))
        for row in _rows(text, User, ("email", "name"), *_mine(User, account_id))
    ]
    return _told("Users", hits, url_for(f"console.show_{every}", search=text))


def _webhooks(text: str, account_id: str | None) -> Found:
    rows = _rows(text, Webhook, ("url", "collection"), *_mine(Webhook, account_id))
    page = "console.show_webhook"
    hits = [
        Hit(row.url, row.collection, url_for(page, account_id=row.account_id, webhook_id=row.id))
        for row in rows
    ]
    return _told("Webhooks", hits)


def _workflows(text: str, account_id: str | None) -> Found:
    hits = []
    for row in _rows(text, Workflow, ("name", "description"), *_mine(Workflow, account_id)):
        at = {"account_id": row.account_id, "kind": row.kind, "workflow_id": row.id}
        hits.append(Hit(row.name, row.kind, url_for("console.show_workflow", **at)))
    return _told("Workflows and hooks", hits)


def _groups(text: str, account_id: str) -> Found:
    # Of one account, as no index has those of all by their age.
    rows = _rows(text, Group, ("name", "description"), *_mine(Group, account_id))
    page = "console.show_group"
    hits = [
        Hit(row.name, row.description or "", url_for(page, group_id=row.id, **_at(row)))
        for row in rows
    ]
    return _told("Groups", hits)


def _keys(text: str, account_id: str) -> Found:
    caller, mine = guard.known_caller(), _mine(ApiKey, account_id)
    if not caller.is_admin:
        mine.append(ApiKey.created_by == caller.user_id)
    rows = _rows(text, ApiKey, ("name", "description"), *mine)
    page = "console.show_keys"
    hits = [Hit(row.name, row.description or "", url_for(page, **_at(row))) for row in rows]
    return _told("API keys", hits, None if caller.is_superadmin else url_for(page))


def _at(row: Any) -> dict[str, Any]:
    return {"account_id": row.account_id} if guard.known_caller().is_superadmin else {}
