"""The settings of an account: its name, the origins that it allows, and how its users sign in."""

from __future__ import annotations

from datetime import timedelta

from flask import redirect, url_for
from werkzeug.wrappers import Response as BaseResponse

from app import clock
from app.accounts import roles, sign_in_settings, tenants
from app.accounts.attributes import Kind
from app.accounts.models import Account
from app.accounts.sign_in_settings import MfaMode
from app.auth import account_settings
from app.collections import attribute_values
from app.console.people import attribute_form
from app.console.people.attribute_form import AttributeForm
from app.console.shell import forms, guard
from app.console.shell.access import ADMIN
from app.console.shell.blueprint import page
from app.console.shell.forms import Form, Page, redirect_with_notice
from app.console.shell.scopes import AccountScope
from app.errors import InvalidValues, problem
from app.sso import service as sso
from app.types import JSONObject
from app.web.languages import gettext, lazy_gettext

SETTINGS = "/console/settings"
ACCOUNT_SETTINGS = f"{SETTINGS}/<uuid:account_id>"
GENERAL, SIGN_IN = f"{ACCOUNT_SETTINGS}/general", f"{ACCOUNT_SETTINGS}/sign-in"
MAX_LINES, MAX_LINE, MAX_ROLES_TEXT = 50, 300, 5000
MAX_BOXES = 30  # of roles; the names of more are typed
HOURS = {
    "session_idle_hours": sign_in_settings.MAX_IDLE_HOURS,
    "session_max_hours": sign_in_settings.MAX_SESSION_HOURS,
}
MODES = {
    MfaMode.OFF: lazy_gettext("not used"),
    MfaMode.OPTIONAL: lazy_gettext("for users who set them up"),
    MfaMode.REQUIRED: lazy_gettext("required"),
}


@page(SETTINGS, role=ADMIN)
def show_settings_home() -> BaseResponse:
    return redirect(url_for("console.show_settings", account_id=guard.own_account_id()))


@page(GENERAL, role=ADMIN)
def show_general_settings(scope: AccountScope, form: Form | None = None) -> Page:
    """The name of an account, and the origins that it allows."""
    account = tenants.get(scope.account.id)
    origins = "\n".join(account.settings.get("cors_origins", ()))
    stored = _attributes(scope, account)
    stored.values |= {"name": account.name, "cors_origins": origins}
    stored.values["seen"] = clock.iso(account.updated_at)
    return (
        (form or Form())
        .over(stored)
        .render("console/settings/general.html", scope=scope, account=account)
    )


@page(GENERAL, "POST", role=ADMIN, form_page=show_general_settings)
def change_general_settings(scope: AccountScope) -> BaseResponse:
    """Save the name, the origins and the attributes."""
    form = attribute_form.submitted(
        _attributes(scope, tenants.get(scope.account.id)), "name", "cors_origins", "seen"
    )
    checked = form.validated(("name",), name=200)
    origins = [line.strip() for line in form["cors_origins"].splitlines() if line.strip()]
    if len(origins) > MAX_LINES or any(len(line) > MAX_LINE for line in origins):
        text = gettext(
            "At most %(lines)s lines of %(length)s characters.", lines=MAX_LINES, length=MAX_LINE
        )
        raise InvalidValues([problem("cors_origins", "too_long", text)])
    body: JSONObject = {"name": checked["name"], "cors_origins": origins}
    if attributes := form.attributes():
        body["attributes"] = attributes
    return _save(scope, form, body, "console.show_general_settings")


def _attributes(scope: AccountScope, account: Account) -> AttributeForm:
    level = attribute_values.level_for_account(scope.by)
    return attribute_form.stored(Kind.ACCOUNTS, level, account.attributes)


@page(SIGN_IN, role=ADMIN)
def show_sign_in_settings(scope: AccountScope, form: Form | None = None) -> Page:
    """The settings of sign-ins and sessions of an account."""
    form = form or _stored_sign_in(tenants.get(scope.account.id))
    found, total = roles.page(0, MAX_BOXES)
    names = dict.fromkeys([*(role.name for role in found), *form.selected])
    limits, hour = sign_in_settings.SERVICE_LIMITS, timedelta(hours=1)
    return form.render(
        "console/settings/sign_in.html",
        scope=scope,
        modes=MODES,
        hours={
            "session_idle_hours": limits.idle // hour,
            "session_max_hours": limits.total // hour,
        },
        providers=[row.display_name for row in sso.list_for_sign_in(scope.account.id)],
        role_boxes=[{"id": one, "name": one} for one in names] if total <= MAX_BOXES else None,
    )


@page(SIGN_IN, "POST", role=ADMIN, form_page=show_sign_in_settings)
def change_sign_in_settings(scope: AccountScope) -> BaseResponse:
    """Save how users sign in."""
    form = forms.submitted("seen", "role_names", *sign_in_settings.NAMES, selected="mfa_roles")
    return _save(scope, form, _sign_in_body(form), "console.show_sign_in_settings")


def _save(scope: AccountScope, form: Form, body: JSONObject, endpoint: str) -> BaseResponse:
    forms.check_unchanged(form, tenants.get(scope.account.id).updated_at)
    account_settings.change(scope.account.id, body, by=scope.by)
    return redirect_with_notice(gettext("The settings are saved."), endpoint, **scope.url_args)


def _stored_sign_in(account: Account) -> Form:
    settings = account.settings
    values = {name: str(settings.get(name) or "") for name in HOURS} | {
        "seen": clock.iso(account.updated_at),
        "mfa": sign_in_settings.mode(settings),
        "role_names": ", ".join(settings.get("mfa_roles", ())),
        "mfa_grace_days": str(settings.get("mfa_grace_days", 0)),
        "magic_link": "true" if settings.get("magic_link") else "",
        "new_device_mail": "true" if sign_in_settings.mails_new_devices(settings) else "",
        "password_sign_in": "true" if sign_in_settings.allows_passwords(settings) else "",
    }
    return Form(values, settings.get("mfa_roles", []))


def _sign_in_body(form: Form) -> JSONObject:
    if form["mfa"] not in tuple(MfaMode):
        raise InvalidValues([problem("mfa", "invalid_option", gettext("Choose one of these."))])
    typed = [name.strip() for name in form["role_names"][:MAX_ROLES_TEXT].split(",")]
    return {
        "mfa": form["mfa"],
        "mfa_roles": form.selected or [name for name in typed if name],
        "mfa_grace_days": _number(form, "mfa_grace_days", 0, sign_in_settings.MAX_GRACE_DAYS) or 0,
        "password_sign_in": bool(form["password_sign_in"]),
        "magic_link": bool(form["magic_link"]),
        "new_device_mail": bool(form["new_device_mail"]),
        **{name: _number(form, name, 1, most) for name, most in HOURS.items()},
    }


def _number(form: Form, name: str, least: int, most: int) -> int | None:
    text = form[name].strip()
    if not text:
        return None
    # int() takes any decimal digits and refuses very long texts.
    if not text.isdecimal() or len(text) > len(str(most)) or not least <= int(text) <= most:
        message = gettext("A number from %(least)s to %(most)s.", least=least, most=most)
        raise InvalidValues([problem(name, "out_of_range", message)])
    return int(text)
