"""The caller's own profile: name, address, password and sessions."""

from __future__ import annotations

from flask import g, url_for
from werkzeug.wrappers import Response as BaseResponse

from app.accounts import service as accounts
from app.accounts.attributes import Kind
from app.accounts.models import User
from app.auth import api_keys, password_resets, sessions, verification
from app.auth import service as auth
from app.auth.mfa import gate
from app.auth.mfa.gate import Proof
from app.collections import attribute_values
from app.console.people import attribute_form
from app.console.people.attribute_form import AttributeForm
from app.console.shell import forms, guard, lists
from app.console.shell.access import USER
from app.console.shell.blueprint import page
from app.console.shell.forms import MAX_PASSWORD_LENGTH, Form, Page, redirect_with_notice
from app.types import JSONObject
from app.web import languages, user_agents
from app.web.languages import LANGUAGES, gettext

MAX_KEYS = 20
PASSWORDS = ("current_password", "new_password")


@page("/console/profile", role=USER, is_hosted=True)
def show_profile(form: Form | None = None) -> Page:
    """The caller's profile."""
    caller, listing = guard.require_caller(), lists.from_request(".show_profile")
    user = auth.get_user(caller)
    stored = _attributes(user)
    stored.values |= {"name": user.name or "", "email": user.email}
    stored.values["language"] = user.language or ""
    listing.with_page(sessions.page(*sessions.user_key(caller), listing.skip, lists.PAGE_SIZE))
    return (
        (form or Form())
        .over(stored)
        .render(
            "console/profile/show.html",
            user=user,
            listing=listing,
            present=g.console_session_id,
            keys=api_keys.list_active(user.account_id, user.id),
            max_keys=MAX_KEYS,
            factors=gate.factors_of(user),
            has_managed_address=gate.is_address_managed(user),
            may_have_password=gate.allows(user, Proof.PASSWORD),
            program=user_agents.describe,
        )
    )


@page("/console/profile", "POST", role=USER, form_page=show_profile, is_hosted=True)
def change_profile() -> BaseResponse:
    """Save the name, or request a change of the address."""
    caller = guard.require_caller()
    form = attribute_form.submitted(_attributes(auth.get_user(caller)), "name", "email", "language")
    body = form.validated(("email",), name=200, email=320)
    language = body["language"] if body["language"] in LANGUAGES else None
    changes: JSONObject = {**body, "name": body["name"] or None, "language": language}
    verification.change_profile(caller, changes | {"attributes": form.attributes()})
    if accounts.email_key(body["email"]) == accounts.email_key(caller.email or ""):
        notice = gettext("Your profile is saved.")
    else:
        notice = gettext(
            "Follow the link in the mail to %(email)s to confirm your new address.",
            email=body["email"],
        )
    response = redirect_with_notice(notice, ".show_profile")
    languages.remember(response, language)
    return response


def _attributes(user: User) -> AttributeForm:
    level = attribute_values.level_for_self(guard.require_caller())
    return attribute_form.stored(Kind.USERS, level, user.attributes)


@page("/console/profile/password", "POST", role=USER, form_page=show_profile, is_hosted=True)
def change_password() -> BaseResponse:
    """Change the own password, which ends all sessions."""
    form = forms.submitted(*PASSWORDS, "revoke_api_keys")
    body = form.validated(PASSWORDS, **dict.fromkeys(PASSWORDS, MAX_PASSWORD_LENGTH))
    password_resets.change_own(
        guard.require_caller(),
        *(body[name] for name in PASSWORDS),
        revoke_api_keys=bool(form["revoke_api_keys"]),
    )
    return redirect_with_notice(
        gettext("Your password is changed. Sign in with the new one."), ".sign_in"
    )


@page("/console/profile/sessions/<uuid:session_id>/end", "POST", role=USER, is_hosted=True)
def end_session(session_id: str) -> BaseResponse:
    sessions.end_active(*sessions.user_key(guard.require_caller()), session_id)
    if session_id == g.console_session_id:
        return guard.end_session(url_for(".sign_in"))
    return redirect_with_notice(gettext("The session has ended."), ".show_profile")


@page("/console/profile/sessions/end-others", "POST", role=USER, is_hosted=True)
def end_other_sessions() -> BaseResponse:
    """End the own sessions but this one."""
    sessions.end_others(guard.require_caller())
    return redirect_with_notice(gettext("Your other sessions have ended."), ".show_profile")
