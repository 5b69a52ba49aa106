"""Lists of users, searched by name and address, and filtered by role, state and account."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from app.accounts import roles, tenants, users
from app.accounts import users as people
from app.accounts.models import UserKind
from app.accounts.types import Query
from app.auth import principal as principals
from app.console.people.users import MAX_ROLES
from app.console.shell import lists
from app.console.shell.lists import Listing, UrlArgs
from app.types import JSONObject
from app.web.languages import gettext, lazy_gettext

MAX_OPTIONS = 10

MAX_SUGGESTED = 100
STATES: Mapping[str, Query] = {
    "active": {"is_active": True, "email_verified": True},
    "not verified": {"is_active": True, "email_verified": False, "kind": UserKind.PERSON},
    "deactivated": {"is_active": False},
    "service": {"kind": UserKind.SERVICE},
}
STATE_NAMES = {
    "active": lazy_gettext("active"),
    "not verified": lazy_gettext("not verified"),
    "deactivated": lazy_gettext("deactivated"),
    "service": lazy_gettext("service user"),
}


def load(endpoint: str, scope: str | None, url_args: UrlArgs) -> Listing:
    """The page of users that the query string asks for; `scope` is their account, None for all."""
    shown_roles, _ = roles.page(0, MAX_ROLES)
    choices = {
        "role": {str(role.id): role.name for role in shown_roles},
        "state": {state: str(name) for state, name in STATE_NAMES.items()},
    }
    texts = {} if scope else {"account": gettext("Account")}
    listing = lists.from_request(endpoint, choices, texts, **url_args)
    if texts:
        listing.suggestions["account"] = tenants.names_by_slug(MAX_SUGGESTED)
    if reference := listing.filters.get("account"):
        account = principals.find_account(reference.lower())
        if account is None:
            message = gettext("There is no account with this slug, code or id.")
            listing.errors["account"] = [message]
            return listing
        scope = account.id
    query = {**listing.page_args, **STATES.get(listing.filters.get("state", ""), {})}
    if role := listing.filters.get("role"):
        query["role_id"] = int(role)
    if listing.search or {"role", "state"} & listing.filters.keys():  # no index covers these
        query["after"] = listing.scan_newest(partial(users.cursor_at_offset, scope))
    return listing.with_page(users.page(scope, query, listing.count_limit))


def search_options(account_id: str, text: str) -> list[JSONObject]:
    """Addresses and labels of users whose name or address has the text, by address."""
    text = text.replace("\0", "").strip()[: lists.MAX_INPUT_LENGTH]
    params = {"skip": 0, "limit": MAX_OPTIONS, "sort_by": "email", "sort_order": "asc"}
    if text:  # no index covers it: among the newest users
        after = people.cursor_at_offset(account_id, lists.MAX_SCANNED) or ""
        params |= {"search": text, "after": after}
    users, _ = people.page(account_id, params, max_total=0)
    return [
        {"id": user.label, "label": f"{user.email} ({user.name})" if user.name else user.email}
        if user.email
        else {"id": user.label, "label": user.label}
        for user in users
    ]
