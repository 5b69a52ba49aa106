"""Operator keys: those of superadmins that act in all accounts but the system account."""

from __future__ import annotations

from typing import Any

from flask import redirect, render_template, url_for
from werkzeug.wrappers import Response as BaseResponse

from app.accounts import users
from app.accounts.models import SYSTEM_ACCOUNT_ID
from app.auth import api_keys
from app.console.people import api_keys as key_pages
from app.console.shell import forms, guard, lists, one_time_secrets
from app.console.shell.access import SUPERADMIN
from app.console.shell.blueprint import page
from app.console.shell.forms import Form, Page
from app.console.shell.navigation import INSTANCE, MenuItem
from app.errors import InvalidValues, problem
from app.web.access import OPERATOR_RESOURCES, OPERATOR_SCOPES, PORTAL, READ, WRITE
from app.web.languages import gettext, lazy_gettext

OPERATOR_KEYS = "/console/operator-keys"
NAMES = {
    "accounts": lazy_gettext("Accounts"),
    "users": lazy_gettext("Users, groups, invitations"),
    "definitions": lazy_gettext("Collections, rules, attributes"),
    "workflows": lazy_gettext("Workflows"),
    "webhooks": lazy_gettext("Webhooks"),
    "records": lazy_gettext("Records and files"),
    "plans": lazy_gettext("Plans"),
    "events": lazy_gettext("Events"),
    PORTAL: lazy_gettext("Portal sessions"),
}


@page(
    OPERATOR_KEYS,
    role=SUPERADMIN,
    menu=MenuItem(INSTANCE, 10, lazy_gettext("Operator keys"), "key"),
)
def show_operator_keys() -> str:
    """The operator keys of all superadmins, newest first."""
    listing = lists.from_request("console.show_operator_keys")
    by = guard.require_caller()
    part = (listing.skip, lists.PAGE_SIZE)
    listing.with_page(api_keys.page(*part, by=by, max_total=listing.count_limit, of_operator=True))
    makers = users.emails(SYSTEM_ACCOUNT_ID, {key.created_by for key in listing.items})
    return render_template("console/operator_keys/list.html", listing=listing, makers=makers)


@page(f"{OPERATOR_KEYS}/new", role=SUPERADMIN)
def show_new_operator_key(form: Form | None = None) -> Page:
    form = form or Form({"expires_in": key_pages.NEVER})
    form.values["expires_in"] = form["expires_in"] or key_pages.ON_DATE
    return form.render(
        "console/operator_keys/new.html",
        form_id=forms.form_id(),
        resources={**dict.fromkeys(OPERATOR_RESOURCES, (READ, WRITE)), PORTAL: (WRITE,)},
        names=NAMES,
        expiries=key_pages.expiries(),
    )


@page(f"{OPERATOR_KEYS}/new", "POST", role=SUPERADMIN, form_page=show_new_operator_key)
def create_operator_key() -> BaseResponse:
    """Create an operator key, and redirect to the page that shows it."""
    form = forms.submitted(*key_pages.FIELDS, "expires_in", "expires_at", selected="scopes")
    by, id = guard.require_caller(), forms.derive_id([form.values, form.selected])
    chosen = [scope for scope in OPERATOR_SCOPES if scope in form.selected]
    values: dict[str, Any] = key_pages.changes(form)
    if not chosen:
        message = gettext("Choose at least one.")
        raise InvalidValues([problem("scopes", "required", message)])
    values |= {"scopes": chosen, "expires_at": key_pages.parse_expiry(form)}
    with forms.ignore_already_created(lambda: api_keys.get(id, by=by)):
        _, text = api_keys.create(values, by=by, id=id)
        one_time_secrets.store(id, text)
    return redirect(url_for("console.show_made_key", key_id=id), 303)
