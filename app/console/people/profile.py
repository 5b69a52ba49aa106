"""What everyone keeps of their own: name, address, password, sessions."""

from __future__ import annotations

from flask import g, request, url_for
from werkzeug.wrappers import Response as BaseResponse

from app.accounts import service as accounts
from app.auth import api_keys, password_resets, sessions, verification
from app.auth import service as auth
from app.console.shell import forms, guard, lists
from app.console.shell.blueprint import blueprint
from app.console.shell.forms import LONGEST_PASSWORD, Form, Page, told
from app.errors import AppError
from app.rest.access import public

PASSWORDS = ("current_password", "new_password")


@blueprint.get("/console/profile")
@public
def show_profile() -> Page:
    """The caller's own data."""
    return _profile_page(Form())


@blueprint.post("/console/profile")
@public
def change_profile() -> Page | BaseResponse:
    """Change the own name, or ask for another address."""
    caller, form = guard.known_caller(), forms.sent("name", "email")
    try:
        body = form.checked(("email",), name=200, email=320)
        sent = {**body, "name": body["name"] or None}
        verification.change_profile(caller, sent, request.remote_addr)
    except AppError as error:
        return _profile_page(form.refused(error))
    if accounts.email_key(body["email"]) == accounts.email_key(caller.email or ""):
        return told("Your profile is saved.", "console.show_profile")
    notice = f"Follow the link in the mail to {body['email']} to change your address."
    return told(notice, "console.show_profile")


@blueprint.post("/console/profile/password")
@public
def change_password() -> Page | BaseResponse:
    """Change the own password, which ends all of the caller's sessions."""
    form = forms.sent(*PASSWORDS, "revoke_api_keys")
    revoke = bool(form["revoke_api_keys"])
    try:
        body = form.checked(PASSWORDS, **dict.fromkeys(PASSWORDS, LONGEST_PASSWORD))
        given = [body[name] for name in PASSWORDS]
        password_resets.change_own(guard.known_caller(), *given, revoke_api_keys=revoke)
    except AppError as error:
        return _profile_page(form.refused(error))
    return told("Your password is changed. Sign in with the new one.", "console.sign_in")


@blueprint.post("/console/profile/sessions/<uuid:session_id>/end")
@public
def end_session(session_id: str) -> BaseResponse:
    """End one of the own sessions."""
    sessions.end_own(guard.known_caller(), session_id)
    if session_id == g.console_session_id:
        return guard.end_session(url_for("console.sign_in"))
    return told("The session is ended.", "console.show_profile")


def _profile_page(form: Form) -> Page:
    caller, listing = guard.known_caller(), lists.asked_for("console.show_profile")
    user = auth.get_user(caller)
    form.values = {"name": user.name or "", "email": user.email, **form.values}
    listing.holding(sessions.list_for_caller(caller, listing.skip, lists.SIZE))
    shown = {"user": user, "listing": listing, "present": g.console_session_id}
    keys = api_keys.list_active(user.account_id, user.id)
    return form.page("console/profile/show.html", keys=keys, **shown)
