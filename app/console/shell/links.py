"""The pages that mailed links lead to, and the one that asks for such a link."""

from __future__ import annotations

from flask import flash, request, url_for
from werkzeug.wrappers import Response as BaseResponse

from app.auth import email_changes, invitations, lockout, password_resets
from app.auth import service as auth
from app.auth.guard import account_of_host
from app.console.shell import forms, guard
from app.console.shell.blueprint import blueprint
from app.console.shell.forms import LONGEST_PASSWORD, Form, Page, told
from app.errors import AppError, BadRequest
from app.rest.access import public

SENT = "If the user exists, a link to set a new password is on its way. Check your inbox."


@blueprint.get("/console/forgot-password")
@public
@guard.open_to_all
def show_forgot_password() -> Page:
    """The form to ask for a link with."""
    return Form({"account": account_of_host() or ""}).page("console/links/forgot.html")


@blueprint.post("/console/forgot-password")
@public
@guard.open_to_all
def forgot_password() -> Page | BaseResponse:
    """Mail a link, and say the same whether or not there is such a user."""
    form = forms.sent("account", "email")
    try:
        body = form.checked(("email",), account=200, email=320)
        account = auth.require_account(body["account"] or account_of_host())
        lockout.count_mail_request(account, body["email"], request.remote_addr, reset=True)
        password_resets.request_reset(account, body["email"])
    except AppError as error:
        return form.refused(error).page("console/links/forgot.html")
    return told(SENT, "console.sign_in")


@blueprint.get("/console/reset-password")
@public
@guard.open_to_all
def show_reset_password() -> Page:
    """The form to set a new password with."""
    token = request.args.get("token", "")
    return _reset_page(Form({"token": token}, status=200 if password_resets.expiry(token) else 400))


@blueprint.post("/console/reset-password")
@public
@guard.open_to_all
def reset_password() -> Page | BaseResponse:
    """Set a new password by the token of a mailed link."""
    form = forms.sent("token", "new_password", "revoke_api_keys")
    revoke = bool(form["revoke_api_keys"])
    try:
        body = form.checked(("new_password",), token=500, new_password=LONGEST_PASSWORD)
        password_resets.reset(body["token"], body["new_password"], revoke_api_keys=revoke)
    except AppError as error:
        return _reset_page(form.refused(error))
    return told("Your new password is set. Sign in with it.", "console.sign_in")


def _reset_page(form: Form) -> Page:
    token = form["token"]
    shown = {
        "valid": password_resets.expiry(token) is not None,
        "keys": password_resets.api_keys_for_token(token),
    }
    return form.page("console/links/reset.html", **shown)


@blueprint.get("/console/undo-email-change")
@public
@guard.open_to_all
def show_undo_email_change() -> Page:
    """The button that takes a changed address back: a scanner of mails presses none."""
    token = request.args.get("token", "")
    status = 200 if email_changes.expiry(token) else 400
    return _undo_page(Form({"token": token}, status=status))


@blueprint.post("/console/undo-email-change")
@public
@guard.open_to_all
def undo_email_change() -> Page | BaseResponse:
    """Take a changed address back by the token of a mailed link."""
    form = forms.sent("token")
    try:
        user = email_changes.undo(form.checked(token=500)["token"])
    except AppError as error:
        return _undo_page(form.refused(error))
    notice = f"Your address is {user.email} again. Check its inbox to set a new password."
    return told(notice, "console.sign_in")


def _undo_page(form: Form) -> Page:
    valid = email_changes.expiry(form["token"]) is not None
    return form.page("console/links/undo_email_change.html", valid=valid)


@blueprint.get("/console/invitations/<token>")
@public
@guard.open_to_all
def show_invitation(token: str) -> Page:
    """The form to accept an invitation with."""
    return _invitation_page(token, Form())


@blueprint.post("/console/invitations/<token>")
@public
@guard.open_to_all
def accept_invitation(token: str) -> Page | BaseResponse:
    """Join the account, and be signed in to the console."""
    form = forms.sent("name", "password")
    try:
        body = form.checked(("password",), name=200, password=LONGEST_PASSWORD)
        user = invitations.accept(token, body["password"], body["name"] or None)
    except AppError as error:
        return _invitation_page(token, form.refused(error))
    flash(f"Welcome to {user.account.name}.")
    guard.end_session("")  # this browser's cookie is about to be another's
    return guard.begin_session(user, url_for("console.show_home"))


def _invitation_page(token: str, form: Form) -> Page:
    invitation = invitations.public_view(token)
    invitations.require_enabled()
    if not invitation["is_valid"]:
        status = invitation["status"]
        raise BadRequest(f"This invitation is {status}. Ask whoever invited you for a new one.")
    return form.page("console/links/invitation.html", invitation=invitation, token=token)
