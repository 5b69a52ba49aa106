"""The setup links of an account: creating one for the customer's IT, and revoking it."""

from __future__ import annotations

from functools import partial

from flask import redirect, render_template, url_for
from werkzeug.wrappers import Response as BaseResponse

from app.accounts import users
from app.accounts.models import SYSTEM_ACCOUNT_ID
from app.console.admin.sso import ACCOUNT
from app.console.shell import forms, idempotent_forms, lists, one_time_secrets, scopes
from app.console.shell.access import ADMIN
from app.console.shell.blueprint import page
from app.console.shell.forms import Form, Page, redirect_with_notice
from app.console.shell.scopes import AccountScope
from app.errors import InvalidValues, NotFound, problem
from app.sso import setup_links
from app.types import JSONObject
from app.web.languages import gettext, lazy_gettext

LINKS = f"{ACCOUNT}/setup-links"
LINK = f"{LINKS}/<uuid:setup_link_id>"
DAYS = ("1", "3", "7", "14")
DEFAULT_DAYS = "3"
FEATURES = (
    {"id": setup_links.SSO, "name": lazy_gettext("Single sign-on")},
    {"id": setup_links.DOMAINS, "name": lazy_gettext("Domains")},
    {"id": setup_links.SCIM, "name": lazy_gettext("Provisioning (SCIM)")},
)
STATE_NAMES = {
    "pending": lazy_gettext("not opened yet"),
    "opened": lazy_gettext("opened"),
    "completed": lazy_gettext("completed"),
    "revoked": lazy_gettext("revoked"),
    "expired": lazy_gettext("expired"),
}


@page(LINKS, role=ADMIN)
def show_setup_links(account_id: str, form: Form | None = None) -> Page:
    """The setup links of an account, with the form that creates one."""
    scope = _scope(account_id)
    listing = lists.from_request("console.show_setup_links", **scope.url_args)
    rows, total = setup_links.page(scope.account.id, listing.skip, lists.PAGE_SIZE)
    listing.with_page((list(rows), total))
    blank = Form({"days": DEFAULT_DAYS}, list(setup_links.FEATURES))
    return (
        (form or Form())
        .over(blank)
        .render(
            "console/setup/links.html",
            scope=scope,
            listing=listing,
            creators=users.emails(scope.account.id, {link.created_by for link in rows}),
            state_names=STATE_NAMES,
            features=FEATURES,
            feature_names={feature["id"]: feature["name"] for feature in FEATURES},
            days=DAYS,
            form_id=idempotent_forms.form_id(),
        )
    )


@page(LINKS, "POST", role=ADMIN, form_page=show_setup_links)
def create_setup_link(account_id: str) -> BaseResponse:
    """Create a setup link, and redirect to the page that shows it."""
    scope, form = _scope(account_id), forms.submitted("name", "email", "days", selected="features")
    id = idempotent_forms.derive_id([form.values, form.selected])
    body = _body(form)
    created = partial(setup_links.get, scope.account.id, id)
    with idempotent_forms.ignore_already_created(created):
        _, url = setup_links.create(body, by=scope.by, id=id)
        one_time_secrets.store(id, url)
    url_args = {**scope.url_args, "setup_link_id": id}
    return redirect(url_for("console.show_made_setup_link", **url_args), 303)


@page(f"{LINK}/made", role=ADMIN)
def show_made_setup_link(account_id: str, setup_link_id: str) -> str | BaseResponse:
    """A new setup link, shown once."""
    scope = _scope(account_id)
    link = setup_links.get(scope.account.id, setup_link_id)
    url = one_time_secrets.pop(link.id)
    if url is None:
        notice = gettext(
            "The link has already been shown. If you did not copy it, revoke it and create another."
        )
        return redirect_with_notice(notice, "console.show_setup_links", **scope.url_args)
    return render_template("console/setup/made.html", scope=scope, link=link, url=url)


@page(f"{LINK}/renew", "POST", role=ADMIN, form_page=show_setup_links)
def renew_setup_link(account_id: str, setup_link_id: str) -> BaseResponse:
    """Mail a link again with a new address, or show it if nobody gets a mail."""
    scope = _scope(account_id)
    link, url = setup_links.renew(setup_link_id, by=scope.by)
    if link.email is None:
        one_time_secrets.store(link.id, url)
        url_args = {**scope.url_args, "setup_link_id": link.id}
        return redirect(url_for("console.show_made_setup_link", **url_args), 303)
    notice = gettext(
        "We have sent a new link to %(email)s. The old one no longer works.", email=link.email
    )
    return redirect_with_notice(notice, "console.show_setup_links", **scope.url_args)


@page(f"{LINK}/revoke", "POST", role=ADMIN, form_page=show_setup_links)
def revoke_setup_link(account_id: str, setup_link_id: str) -> BaseResponse:
    """Revoke a setup link; revoking it twice succeeds."""
    scope = _scope(account_id)
    setup_links.revoke(setup_link_id, by=scope.by)
    notice = gettext("The link is revoked. What was set up stays.")
    return redirect_with_notice(notice, "console.show_setup_links", **scope.url_args)


def _scope(account_id: str) -> AccountScope:
    scope = scopes.account_scope(account_id)
    if scope.account.id == SYSTEM_ACCOUNT_ID:
        raise NotFound
    return scope


def _body(form: Form) -> JSONObject:
    values = form.validated(("name",), name=setup_links.LONGEST_NAME, email=320)
    features = [name for name in setup_links.FEATURES if name in form.selected]
    problems = []
    if not features:
        message = gettext("Choose at least one.")
        problems.append(problem("features", "required", message))
    if form["days"] not in DAYS:
        message = gettext("Choose one of the options.")
        problems.append(problem("days", "invalid_option", message))
    if problems:
        raise InvalidValues(problems)
    hours = {"expires_in_hours": 24 * int(form["days"])}
    return {"name": values["name"], "email": values["email"] or None, "features": features, **hours}
