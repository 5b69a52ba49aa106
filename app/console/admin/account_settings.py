"""The settings of an account: its name, and the origins and redirect addresses it allows."""

from __future__ import annotations

from flask import redirect, url_for
from werkzeug.wrappers import Response as BaseResponse

from app import clock
from app.accounts import tenants
from app.auth import account_settings
from app.console.shell import forms, guard, scopes
from app.console.shell.blueprint import blueprint
from app.console.shell.forms import Form, Page, redirect_with_notice
from app.console.shell.scopes import AccountScope
from app.errors import AppError, InvalidValues, problem
from app.http.languages import gettext
from app.rest.access import public
from app.types import JSONObject

SETTINGS = "/console/settings"
ACCOUNT_SETTINGS = f"{SETTINGS}/<uuid:account_id>"
LIST_FIELDS = {"allowed_redirect_uris": 2000, "cors_origins": 300}  # maximum length of a line
MAX_LINES = 50


@blueprint.get(SETTINGS)
@public
@guard.admins_only
def show_settings_home() -> BaseResponse:
    """Redirect to the settings of the own account."""
    return redirect(url_for("console.show_settings", account_id=guard.own_account_id()))


@blueprint.get(ACCOUNT_SETTINGS)
@public
@guard.admins_only
def show_settings(account_id: str) -> Page:
    """The settings of an account."""
    scope = scopes.account_scope(account_id)
    account = tenants.get(scope.account.id)
    lists = {name: "\n".join(account.settings.get(name, ())) for name in LIST_FIELDS}
    default = account.settings.get("default_redirect_uri") or ""
    values = {"name": account.name, "default_redirect_uri": default, **lists}
    return _page(scope, Form(values | {"seen": clock.iso(account.updated_at)}))


@blueprint.post(ACCOUNT_SETTINGS)
@public
@guard.admins_only
def change_settings(account_id: str) -> Page | BaseResponse:
    """Save the settings of an account."""
    scope = scopes.account_scope(account_id)
    form = forms.submitted("name", "default_redirect_uri", *LIST_FIELDS, "seen")
    try:
        forms.check_unchanged(form, tenants.get(scope.account.id).updated_at)
        account_settings.change(scope.account.id, _body(form), by=scope.by)
    except AppError as error:
        return _page(scope, form.with_error(error))
    notice = gettext("The settings are saved.")
    return redirect_with_notice(notice, "console.show_settings", **scope.url_args)


def _body(form: Form) -> JSONObject:
    checked = form.validated(("name",), name=200, default_redirect_uri=2000)
    lines = {
        name: [line.strip() for line in form[name].splitlines() if line.strip()]
        for name in LIST_FIELDS
    }
    problems = [
        problem(name, "too_long", _too_long(LIST_FIELDS[name]))
        for name, values in lines.items()
        if len(values) > MAX_LINES or any(len(line) > LIST_FIELDS[name] for line in values)
    ]
    if problems:
        raise InvalidValues(problems)
    default = checked["default_redirect_uri"] or None
    return {"name": checked["name"], "default_redirect_uri": default, **lines}


def _too_long(length: int) -> str:
    return gettext(
        "At most %(lines)s lines of %(length)s characters.", lines=MAX_LINES, length=length
    )


def _page(scope: AccountScope, form: Form) -> Page:
    account = tenants.get(scope.account.id)
    return form.render("console/settings/show.html", scope=scope, account=account)
