"""Choosing the account to sign in to."""

from __future__ import annotations

from flask import redirect, request, url_for
from werkzeug.wrappers import Response as BaseResponse

from app.auth import service as auth
from app.console.shell import brand, forms, guard, realms
from app.console.shell.access import ANYBODY
from app.console.shell.blueprint import page
from app.console.shell.forms import Form, Page
from app.errors import InvalidValues, problem
from app.sso import service as providers
from app.web.languages import gettext


@page("/welcome/accounts", role=ANYBODY)
def show_accounts(form: Form | None = None) -> Page:
    """The account that one is signed in to, the last one of this browser, and any other by name."""
    caller, last = guard.caller(), providers.find_active_account(realms.suggested_account())
    user = auth.get_user(caller) if caller and caller.home else None
    if last is None or (user and last.id == user.account_id):
        last = None
    form = form or Form({"next": request.args.get("next", "")[:2_000]})
    return form.render(
        "welcome/accounts.html", user=user, last=last, target=user and brand.landing(user)
    )


@page("/welcome/accounts", "POST", role=ANYBODY, form_page=show_accounts)
def choose_account() -> BaseResponse:
    """Lead to the sign-in of an account, which is named by its slug, code or id."""
    form = forms.submitted("account", "next")
    body = form.validated(("account",), account=realms.MAX_LENGTH)
    realms.count_look_up()
    account = providers.find_active_account(body["account"])
    if account is None:
        message = gettext("There is no such organization. Check the spelling.")
        raise InvalidValues([problem("account", "invalid_reference", message)])
    address = url_for("welcome.sign_in", account=account.slug, next=body["next"] or None)
    return redirect(address, 303)
