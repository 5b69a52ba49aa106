"""The set-up of single sign-on by the holder of a setup link, who is no user."""

from __future__ import annotations

from flask import redirect, render_template, url_for
from werkzeug.wrappers import Response as BaseResponse

from app import clock
from app.accounts.domains import service as domains
from app.accounts.domains.models import DomainState
from app.console.admin import sso
from app.console.admin.domains import STATE_NAMES
from app.console.shell import guard
from app.console.shell.access import ADMIN, ANY_FEATURE, ANYBODY
from app.console.shell.blueprint import page
from app.console.shell.forms import Form, Page
from app.errors import BadRequest
from app.sso import providers, service, setup_links
from app.sso.scim import tokens
from app.web.languages import gettext

SETUP = "/console/setup"
MAX_SHOWN = 100


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
        state_names=STATE_NAMES,
        verified=DomainState.VERIFIED,
        steps=[(name, title) for name, title in steps.items() if name in link.features],
    )


@page(f"{SETUP}/done", role=ANYBODY)
def show_setup_done() -> str:
    """The end of a completed set-up."""
    return render_template("console/setup/closed.html", done=True)


@page(f"{SETUP}/<token>", role=ANYBODY)
def show_setup_link(token: str) -> Page:
    """What a link is for, and the button that opens it: looking does not use it up."""
    try:
        link, account = setup_links.by_token(token)
    except BadRequest:
        return _closed_page()
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
