"""API keys: the caller's own, and for admins those of the account."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

from flask import redirect, render_template, request, url_for
from werkzeug.wrappers import Response as BaseResponse

from app import clock
from app.accounts import users
from app.auth import api_keys, key_changes, key_scopes, owners
from app.auth.portals import PortalPage
from app.collections import definitions
from app.console.shell import forms, guard, lists, one_time_secrets
from app.console.shell.access import USER
from app.console.shell.blueprint import page
from app.console.shell.forms import Form, Page, redirect_with_notice
from app.console.shell.navigation import PEOPLE, MenuItem
from app.console.shell.scopes import AccountScope
from app.errors import Conflict, InvalidValues, problem
from app.rules import OPERATIONS
from app.web.languages import gettext, lazy_gettext, ngettext

KEY = "/console/keys/<uuid:key_id>"
FIELDS = ("name", "description", "ip_addresses")
OVERLAP = timedelta(days=1)  # in which the secret before a rotation works
FULL, READ = "full", "read"
NEVER, ON_DATE = "never", "date"
DAYS = (30, 90, 365)
MAX_SCOPES = forms.MAX_SELECTED * len(OPERATIONS)


@page(
    "/console/keys",
    role=USER,
    portal=PortalPage.API_KEYS,
    in_account=True,
    menu=MenuItem(PEOPLE, 4, lazy_gettext("API keys"), "key"),
)
def show_keys(scope: AccountScope) -> str:
    """The keys that the caller may see."""
    # The filter by owner is for admins, and offers the user whom the query string names.
    owner = request.args.get("owner", "").replace("\0", "")[: lists.MAX_INPUT_LENGTH]
    owners = users.emails(scope.account.id, {owner}) if scope.by.is_admin else {}
    listing = lists.from_request("console.show_keys", {"owner": owners}, **scope.url_args)
    listing.with_page(
        api_keys.page(
            listing.skip,
            lists.PAGE_SIZE,
            by=scope.by,
            max_total=listing.count_limit,
            created_by=listing.filters.get("owner"),
        )
    )
    emails = users.emails(scope.account.id, {key.created_by for key in listing.items})
    return render_template(
        "console/keys/list.html",
        scope=scope,
        listing=listing,
        emails=emails,
        is_own_account=scope.account == scope.by.home,
    )


@page("/console/keys/new", role=USER, portal=PortalPage.API_KEYS)
def show_new_key(scope: AccountScope, form: Form | None = None) -> Page:
    form = form or Form({"access": FULL, "expires_in": NEVER})
    form.values["expires_in"] = form["expires_in"] or ON_DATE
    names = [
        one.name for one in definitions.get_all(with_views=True) if scope.allowed_operations(one)
    ]
    users = {"": gettext("You")}
    if scope.by.is_admin and scope.account is scope.by.home:
        found = owners.service_users(scope.account.id, forms.MAX_SELECTED)
        users |= {user.id: user.label for user in found}
    form.values.setdefault("user_id", request.args.get("user_id", ""))
    return form.render(
        "console/keys/new.html",
        form_id=forms.form_id(),
        expiries=expiries(),
        users=users,
        operations=OPERATIONS,
        access={FULL: gettext("Read and write"), READ: gettext("Read only")},
        collections=names[: forms.MAX_SELECTED],
        other_collections=len(names[forms.MAX_SELECTED :]),
    )


@page("/console/keys/new", "POST", role=USER, portal=PortalPage.API_KEYS, form_page=show_new_key)
def create_key() -> BaseResponse:
    """Create a key, and redirect to the page that shows it."""
    names, by = (*FIELDS, "access", "expires_in", "expires_at"), guard.require_caller()
    form = forms.submitted(*names, "user_id", selected="scopes")
    form.selected = [one.replace("\0", "") for one in request.form.getlist("scopes")[:MAX_SCOPES]]
    id = forms.derive_id([form.values, form.selected])
    values = {
        **changes(form),
        "read_only": form["access"] == READ,
        "scopes": _pairs(form.selected),
        "user_id": form["user_id"] or None,
        "expires_at": parse_expiry(form),
    }
    with forms.ignore_already_created(lambda: api_keys.get(id, by=by)):
        _, text = api_keys.create(values, by=by, id=id)
        one_time_secrets.store(id, text)
    return redirect(url_for("console.show_made_key", key_id=id), 303)


@page(KEY, role=USER, portal=PortalPage.API_KEYS, in_account=True)
def show_key(scope: AccountScope, key_id: str, form: Form | None = None) -> Page:
    """A key, with the form that changes it."""
    key = api_keys.get(key_id, by=scope.by)
    addresses = "\n".join(key.ip_addresses or ())
    stored = {"name": key.name, "description": key.description or "", "ip_addresses": addresses}
    is_own, owner_url = key.created_by == scope.by.user_id, None
    is_mine = is_own or (
        scope.by.is_admin and owners.may_name(key.account_id, key.created_by, by=scope.by)
    )
    if is_own:
        owner_url = url_for("console.show_profile")
    elif scope.by.is_superadmin:
        owner_url = url_for("console.show_user", user_id=key.created_by)
    elif scope.by.is_admin:
        owner_url = url_for("console.show_member", user_id=key.created_by)
    return (
        (form or Form())
        .over(Form(stored))
        .render(
            "console/keys/one.html",
            scope=scope,
            key=key,
            scoped=key_scopes.by_collection(key.scopes),
            owner=users.emails(scope.account.id, {key.created_by})[key.created_by],
            is_own=is_mine,
            owner_url=owner_url,
        )
    )


@page(KEY, "POST", role=USER, portal=PortalPage.API_KEYS, in_account=True, form_page=show_key)
def change_key(scope: AccountScope, key_id: str) -> BaseResponse:
    """Change a key's name, description or addresses."""
    form = forms.submitted(*FIELDS)
    key = key_changes.change(key_id, changes(form), by=scope.by)
    notice = gettext("The key %(name)s is saved.", name=key.name)
    return redirect_with_notice(notice, "console.show_key", key_id=key.id, **scope.url_args)


@page(f"{KEY}/rotate", "POST", role=USER, portal=PortalPage.API_KEYS)
def rotate_key(key_id: str) -> BaseResponse:
    """Give one of the own keys a new secret, and redirect to the page that shows it."""
    key, text = key_changes.rotate(key_id, OVERLAP, by=guard.require_caller())
    one_time_secrets.store(key.id, text)
    return redirect(url_for("console.show_made_key", key_id=key.id), 303)


@page(f"{KEY}/made", role=USER, portal=PortalPage.API_KEYS)
def show_made_key(key_id: str) -> str | BaseResponse:
    """A new key, shown once."""
    key = api_keys.get(key_id, by=guard.require_caller())
    text = one_time_secrets.pop(key.id)
    if text is None:
        notice = gettext(
            "The key %(name)s has already been shown. If you did not copy it, revoke it and create"
            " another.",
            name=key.name,
        )
        return redirect_with_notice(notice, "console.show_keys")
    return render_template("console/keys/made.html", key=key, text=text)


@page(f"{KEY}/revoke", "POST", role=USER, portal=PortalPage.API_KEYS, in_account=True)
def revoke_key(scope: AccountScope, key_id: str) -> BaseResponse:
    """Revoke a key; revoking it twice succeeds."""
    with suppress(Conflict):
        api_keys.revoke(key_id, by=scope.by)
    key = api_keys.get(key_id, by=scope.by)
    notice = gettext("The key %(name)s is revoked.", name=key.name)
    return redirect_with_notice(notice, "console.show_keys", **scope.url_args)


def _pairs(chosen: Sequence[str]) -> dict[str, list[str]] | None:
    """Scopes for checked boxes such as `tickets:list`. Raises InvalidValues."""
    pairs: dict[str, list[str]] = {}
    known = {one.name for one in definitions.get_all(with_views=True)}
    for name, _, operation in (one.partition(":") for one in dict.fromkeys(chosen)):
        if name not in known or operation not in OPERATIONS:
            message = gettext("There is no collection %(name)s.", name=name[:80])
            raise InvalidValues([problem("scopes", "unknown_collection", message)])
        pairs.setdefault(name, []).append(operation)
    return pairs or None


def expiries() -> dict[str, str]:
    """The choices of when a key expires."""
    days = {str(n): ngettext("%(num)s day", "%(num)s days", n) for n in DAYS}
    return {NEVER: gettext("never"), **days, ON_DATE: gettext("on a date")}


def changes(form: Form) -> dict[str, Any]:
    """What a form says of a key's name, description and addresses. Raises InvalidValues."""
    body = form.validated(("name",), name=200, description=1000, ip_addresses=5000)
    return {
        "name": body["name"],
        "description": body["description"] or None,
        "ip_addresses": body["ip_addresses"].split(),
    }


def parse_expiry(form: Form) -> datetime | None:
    """The expiry of the key: the end of a day, or a number of days from now; None for never."""
    choice, day = form["expires_in"], form["expires_at"]
    if choice == NEVER:
        return None
    if choice in map(str, DAYS):
        return clock.now() + timedelta(days=int(choice))
    if choice == ON_DATE and not day:
        raise InvalidValues([problem("expires_at", "required", gettext("Required."))])
    try:
        return clock.parse(day[:10]) + timedelta(days=1) if day else None
    except (ValueError, OverflowError):
        message = gettext("Enter a date, such as 2030-12-31.")
        raise InvalidValues([problem("expires_at", "invalid_datetime", message)]) from None
