"""Setup links: creating them for the customer's IT, and the set-up by who holds one, no user."""

from __future__ import annotations

from functools import partial

from flask import redirect, render_template, url_for
from werkzeug.wrappers import Response as BaseResponse

from app import clock
from app.accounts import users
from app.accounts.domains import service as domains
from app.accounts.domains.models import DomainState
from app.accounts.models import SYSTEM_ACCOUNT_ID
from app.console.admin import sso
from app.console.admin.domains import STATE_NAMES as DOMAIN_STATES
from app.console.admin.sso import ACCOUNT
from app.console.shell import brand, forms, guard, lists, one_time_secrets, owner_form, scopes
from app.console.shell.access import ADMIN, ANY_FEATURE, ANYBODY, SETUP
from app.console.shell.blueprint import page
from app.console.shell.forms import Form, Page, redirect_with_notice
from app.console.shell.scopes import AccountScope
from app.errors import BadRequest, InvalidValues, NotFound, problem
from app.sso import providers, service, setup_links
from app.sso.scim import tokens
from app.types import JSONObject
from app.web.languages import gettext, lazy_gettext

MAX_SHOWN = 100

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
            owners=owner_form.choices(scope, admins=True),
            form_id=forms.form_id(),
        )
    )


@page(LINKS, "POST", role=ADMIN, form_page=show_setup_links)
def create_setup_link(account_id: str) -> BaseResponse:
    """Create a setup link, and redirect to the page that shows it."""
    scope = _scope(account_id)
    form = forms.submitted("name", "email", "days", "owner_id", selected="features")
    id = forms.derive_id([form.values, form.selected])
    body = _body(form)
    created = partial(setup_links.get, scope.account.id, id)
    with forms.ignore_already_created(created):
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
    owner = {"owner_id": form["owner_id"] or None}
    return {
        "name": values["name"],
        "email": values["email"] or None,
        "features": features,
        **hours,
        **owner,
    }


@page(SETUP, role=ANYBODY, setup=ANY_FEATURE)
def show_setup() -> Page | BaseResponse:
    """The steps of the set-up."""
    holder = guard.caller()
    if holder is None:
        return _closed_page()
    if holder.setup is None:
        return redirect(url_for("console.show_home"))
    return _steps_page(Form())


def _closed_page() -> Page:
    return render_template("console/setup/closed.html", done=False), 403


def _steps_page(form: Form) -> Page:
    holder = guard.require_caller()
    account, link_id = holder.home_and_user()
    link = setup_links.get(account.id, link_id)
    rows = service.page(0, MAX_SHOWN, by=holder)[0]
    lacking = sso.without_domains(service.find_active_account(account.id), rows)
    shown = domains.page(account.id, 0, MAX_SHOWN)[0]
    steps = {
        setup_links.SSO: gettext("Connect your identity provider"),
        setup_links.DOMAINS: gettext("Verify your domains"),
        setup_links.SCIM: gettext("Provision users and groups"),
    }
    return form.render(
        "console/setup/steps.html",
        account=account,
        link=link,
        rows=rows,
        creates_no_users=bool(lacking)
        and all(row.id in lacking or not row.enabled for row in rows),
        sender=sso.sender_of(link),
        kinds=providers.PROVIDERS,
        domains=shown,
        verified_count=sum(row.state is DomainState.VERIFIED for row in shown),
        tokens=tokens.list_active(account.id),
        state_names=DOMAIN_STATES,
        verified=DomainState.VERIFIED,
        steps=[(name, title) for name, title in steps.items() if name in link.features],
    )


@page(f"{SETUP}/done", role=ANYBODY)
def show_setup_done() -> str:
    """The end of a completed set-up."""
    return render_template("console/setup/closed.html", done=True)


@page(f"{SETUP}/<token>", role=ANYBODY)
def show_setup_link(token: str) -> Page:
    """The purpose of a link, and the button that opens it: looking does not use it up."""
    try:
        link, account = setup_links.by_token(token)
    except BadRequest:
        return _closed_page()
    brand.show(account.id)
    return Form().render("console/setup/open.html", link=link, account=account, token=token)


@page(f"{SETUP}/<token>", "POST", role=ANYBODY)
def open_setup_link(token: str) -> Page | BaseResponse:
    """Open a link, which uses it up."""
    try:
        link, secret = setup_links.redeem(token)
    except BadRequest:
        return _closed_page()
    return guard.start_setup(link.id, secret, link.expires_at - clock.now())


@page(f"{SETUP}/complete", "POST", role=ADMIN, setup=ANY_FEATURE, form_page=_steps_page)
def complete_setup() -> BaseResponse:
    """End the set-up."""
    holder = guard.require_caller()
    if holder.setup is None:
        return redirect(url_for("console.show_home"), 303)
    setup_links.complete(holder)
    return guard.end_setup(redirect(url_for("console.show_setup_done"), 303))
