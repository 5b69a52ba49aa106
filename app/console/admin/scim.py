"""Provisioning by SCIM: the tokens of an account's directory."""

from __future__ import annotations

from functools import partial

from flask import redirect, render_template, url_for
from werkzeug.wrappers import Response as BaseResponse

from app.accounts import users
from app.accounts.models import SYSTEM_ACCOUNT_ID
from app.auth.portals import PortalPage
from app.console.shell import forms, one_time_secrets, owner_form, scopes
from app.console.shell.access import ADMIN
from app.console.shell.blueprint import page
from app.console.shell.forms import Form, Page, redirect_with_notice
from app.console.shell.scopes import AccountScope
from app.errors import NotFound
from app.sso import setup_links
from app.sso.scim import tokens as scim_tokens
from app.sso.scim.token_routes import base_url
from app.web.languages import gettext

SCIM = "/console/sso/<uuid:account_id>/scim"
TOKEN = f"{SCIM}/<uuid:scim_token_id>"


scim_page = partial(page, role=ADMIN, portal=PortalPage.SCIM, setup=setup_links.SCIM)


@scim_page(SCIM)
def show_scim(account_id: str, form: Form | None = None) -> Page:
    """The tokens of the account's directory."""
    scope = _scope(account_id)
    tokens = scim_tokens.list_active(scope.account.id)
    creators = {token.created_by for token in tokens}
    names = {
        **users.emails(scope.account.id, creators),
        **setup_links.names(scope.account.id, creators),
    }
    return (form or Form()).render(
        "console/sso/scim.html",
        scope=scope,
        tokens=tokens,
        creators=names,
        address=base_url(),
        may_create=len(tokens) < scim_tokens.MAX_ACTIVE,
        owners=owner_form.choices(scope, admins=True) if scope.by.setup is None else {},
        form_id=forms.form_id(),
    )


@scim_page(SCIM, "POST", form_page=show_scim)
def create_scim_token(account_id: str) -> BaseResponse:
    """Create a token, and redirect to the page that shows it."""
    scope, form = _scope(account_id), forms.submitted("owner_id")
    id = forms.derive_id(form.values)
    created = partial(scim_tokens.get, scope.account.id, id)
    with forms.ignore_already_created(created):
        _, text = scim_tokens.create(owner_id=form["owner_id"] or None, by=scope.by, id=id)
        one_time_secrets.store(id, text)
    url_args = {**scope.url_args, "scim_token_id": id}
    return redirect(url_for("console.show_made_scim_token", **url_args), 303)


@scim_page(f"{TOKEN}/made")
def show_made_scim_token(account_id: str, scim_token_id: str) -> str | BaseResponse:
    """A new token, shown once."""
    scope = _scope(account_id)
    token = scim_tokens.get(scope.account.id, scim_token_id)
    text = one_time_secrets.pop(token.id)
    if text is None:
        notice = gettext(
            "The token has already been shown. If you did not copy it, revoke it and create"
            " another."
        )
        return redirect_with_notice(notice, "console.show_scim", **scope.url_args)
    return render_template("console/sso/scim_made.html", scope=scope, text=text, address=base_url())


@scim_page(f"{TOKEN}/revoke", "POST")
def revoke_scim_token(account_id: str, scim_token_id: str) -> BaseResponse:
    """Revoke a token; revoking it twice succeeds."""
    scope = _scope(account_id)
    with forms.ignore_already_deleted(scope.account.id, "scim_tokens", scim_token_id):
        scim_tokens.revoke(scim_token_id, by=scope.by)
    return redirect_with_notice(
        gettext("The token is revoked."), "console.show_scim", **scope.url_args
    )


def _scope(account_id: str) -> AccountScope:
    scope = scopes.account_scope(account_id)
    if scope.account.id == SYSTEM_ACCOUNT_ID:
        raise NotFound  # nobody provisions superadmins
    return scope
