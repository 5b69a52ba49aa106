"""The settings of an account: its name, and where browsers may come from and return to."""

from __future__ import annotations

from typing import Any

from flask import redirect, url_for
from werkzeug.wrappers import Response as BaseResponse

from app import clock
from app.accounts import tenants
from app.auth import account_settings
from app.console.shell import forms, guard, scopes
from app.console.shell.blueprint import blueprint
from app.console.shell.forms import Form, Page, told
from app.console.shell.scopes import Place
from app.errors import AppError, InvalidValues, problem
from app.rest.access import public

SETTINGS = "/console/settings"
ONE = f"{SETTINGS}/<uuid:account_id>"
LISTS = {"allowed_redirect_uris": 2000, "cors_origins": 300}  # how long each may be
MOST_LINES = 50


@blueprint.get(SETTINGS)
@public
@guard.for_admins
def show_settings_home() -> BaseResponse:
    """The settings of the own account."""
    return redirect(url_for("console.show_settings", account_id=guard.own_account()))


@blueprint.get(ONE)
@public
@guard.for_admins
def show_settings(account_id: str) -> Page:
    """The settings of an account."""
    place = scopes.found(account_id)
    account = tenants.get(place.account.id)
    kept = {name: "\n".join(account.settings.get(name, ())) for name in LISTS}
    default = account.settings.get("default_redirect_uri") or ""
    shown = {"name": account.name, "default_redirect_uri": default, **kept}
    return _page(place, Form(shown | {"seen": clock.iso(account.updated_at)}))


@blueprint.post(ONE)
@public
@guard.for_admins
def change_settings(account_id: str) -> Page | BaseResponse:
    """Save the settings of an account."""
    place = scopes.found(account_id)
    form = forms.sent("name", "default_redirect_uri", *LISTS, "seen")
    try:
        forms.check_seen(form, tenants.get(place.account.id).updated_at)
        account_settings.change(place.account.id, _body(form), by=place.by)
    except AppError as error:
        return _page(place, form.refused(error))
    return told("The settings are saved.", "console.show_settings", **place.at)


def _body(form: Form) -> dict[str, Any]:
    checked = form.checked(("name",), name=200, default_redirect_uri=2000)
    lines = {
        name: [line.strip() for line in form[name].splitlines() if line.strip()] for name in LISTS
    }
    found = [
        problem(name, "too_long", f"At most {MOST_LINES} lines of {LISTS[name]} characters.")
        for name, given in lines.items()
        if len(given) > MOST_LINES or any(len(line) > LISTS[name] for line in given)
    ]
    if found:
        raise InvalidValues(found)
    default = checked["default_redirect_uri"] or None
    return {"name": checked["name"], "default_redirect_uri": default, **lines}


def _page(place: Place, form: Form) -> Page:
    account = tenants.get(place.account.id)
    return form.page("console/settings/show.html", place=place, account=account)
