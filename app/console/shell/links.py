"""The pages behind mailed links, and the page that requests such a link."""

from __future__ import annotations

import json
from collections.abc import Mapping

from flask import Response, flash, make_response, render_template, request, url_for
from werkzeug.wrappers import Response as BaseResponse

from app.accounts.models import User
from app.auth import (
    email_changes,
    invitations,
    magic_links,
    mail_tokens,
    password_resets,
    verification,
)
from app.auth import service as auth
from app.auth.guard import account_of_host
from app.auth.mfa import gate
from app.auth.mfa.gate import MfaRequired, Proof
from app.auth.models import InvitationState, LinkPurpose
from app.auth.responses import count_mail_request
from app.auth.routes import links
from app.auth.schemas import VERIFIED, TokenBody, VerifiedAddress
from app.console.shell import forms, guard, realms, second_factor
from app.console.shell.access import ANYBODY
from app.console.shell.blueprint import page
from app.console.shell.forms import MAX_PASSWORD_LENGTH, Form, Page, redirect_with_notice
from app.errors import AppError, BadRequest, InvalidValues, problem
from app.web import error_handlers, html
from app.web.access import public
from app.web.languages import gettext, lazy_gettext
from app.web.openapi_text import PAGE_EXAMPLE
from app.web.schemas import TEXT

INVALID_INVITATION: Mapping[str, object] = {
    InvitationState.ACCEPTED: lazy_gettext(
        "This invitation is accepted. Ask whoever invited you for a new one."
    ),
    InvitationState.EXPIRED: lazy_gettext(
        "This invitation is expired. Ask whoever invited you for a new one."
    ),
    InvitationState.CANCELLED: lazy_gettext(
        "This invitation is cancelled. Ask whoever invited you for a new one."
    ),
}


@page("/console/forgot-password", role=ANYBODY)
def show_forgot_password(form: Form | None = None) -> Page:
    """The form that requests a reset link."""
    account = request.args.get("account", "")[:200] or account_of_host() or ""
    return (form or Form({"account": account})).render("console/links/forgot.html")


@page("/console/forgot-password", "POST", role=ANYBODY, form_page=show_forgot_password)
def forgot_password() -> BaseResponse:
    """Mail a reset link; the answer does not reveal whether the user exists."""
    form = forms.submitted("account", "email")
    body = form.validated(("email",), account=200, email=realms.MAX_EMAIL)
    account = auth.require_account(realms.account_of(form))
    source = count_mail_request(account, body["email"], reset=True)
    password_resets.request_reset(account, body["email"], source)
    notice = gettext(
        "If this user exists, we have sent a link to set a new password. Check your inbox."
    )
    return redirect_with_notice(notice, "console.sign_in")


@page("/console/reset-password", role=ANYBODY)
def show_reset_password(form: Form | None = None) -> Page:
    """The form that sets a new password."""
    if form is None:
        token = request.args.get("token", "")
        form = Form({"token": token}, status=200 if password_resets.expiry(token) else 400)
    return form.render(
        "console/links/reset.html",
        user=password_resets.user_for_token(form["token"]),
        keys=password_resets.api_keys_for_token(form["token"]),
    )


@page("/console/reset-password", "POST", role=ANYBODY, form_page=show_reset_password)
def reset_password() -> BaseResponse:
    """Set a new password with the token of a mailed link."""
    form = forms.submitted("token", "new_password", "revoke_api_keys")
    revoke = bool(form["revoke_api_keys"])
    body = form.validated(("new_password",), token=500, new_password=MAX_PASSWORD_LENGTH)
    password_resets.reset(body["token"], body["new_password"], revoke_api_keys=revoke)
    notice = gettext("Your password is changed. Sign in with the new one.")
    return redirect_with_notice(notice, "console.sign_in")


@links.route("/auth/verify-email", methods=["GET"])
@links.arguments(TokenBody, location="query")
@links.response(200, VerifiedAddress, example=VERIFIED)
@links.alt_response(
    200,
    schema=TEXT,
    content_type="text/html",
    example=PAGE_EXAMPLE,
    description="A page with a button, for all other clients.",
)
@links.fails(400, 403, 409)
@public(across_accounts=True)
def open_verification_link(args: dict[str, str]) -> Response | dict[str, object]:
    """Verify an address, for clients that accept nothing but JSON: the link in the mail.

    Only a GET whose `Accept` is exactly `application/json` verifies. All others get a page with a
    button, and change nothing: mail scanners open links.
    """
    if request.method == "GET" and html.wants_only_json():
        user = verification.verify(args["token"])
        return {"message": VERIFIED["message"], "user": user}
    guard.load_caller()
    page, status = _verification_page(Form({"token": args["token"]}))
    return _link_page(page, status)


def _link_page(page: str, status: int, headers: Mapping[str, str] = {}) -> Response:
    response = make_response(page, status, dict(headers))
    response.vary.add("Accept")
    return html.add_security_headers(response)


def _link_error(error: AppError) -> Response:
    if html.wants_only_json():
        return error_handlers.json_error(error)
    page = render_template("auth/not_verified.html", problem=error.message)
    return _link_page(page, error.status, error.headers)


links.record_once(
    lambda state: error_handlers.register_error_page(state.app, "/auth/verify-email", _link_error)
)


class VerificationForm(Form):
    """A form with one password, the chosen one or a new one."""

    def with_error(self, error: AppError) -> VerificationForm:
        """The form with the messages of an error, all of values beside the password."""
        if isinstance(error, InvalidValues):
            error = InvalidValues([{**one, "field": "password"} for one in error.details])
        super().with_error(error)
        return self


def _asks_password(user: User) -> bool:
    caller = guard.caller()
    return gate.has_password(user) and (caller is None or caller.user_id != user.id)


def _verification_page(form: Form) -> Page:
    user, email = verification.find(form["token"][:500]) or (None, None)
    if user is None:
        problem = form.problem or mail_tokens.invalid_token().message
        return render_template("auth/not_verified.html", problem=problem), 400
    return form.render(
        "console/links/verify.html",
        user=user,
        email=email,
        is_first=email == user.email,
        asks_password=_asks_password(user),
    )


@page("/console/verify-email", "POST", role=ANYBODY, form_page=_verification_page)
def verify_email() -> str:
    """Verify an address with the token of a mailed link.

    With the password that was chosen before, or a new one: a stranger may have chosen it.
    """
    form = forms.submitted("token", "password", "is_new", kind=VerificationForm)
    caller, name = guard.caller(), "new_password" if form["is_new"] else "password"
    form.validated(token=500, password=MAX_PASSWORD_LENGTH)
    user, _ = verification.find(form["token"]) or (None, None)
    asks = user is not None and _asks_password(user)
    if asks and not form["password"]:
        form.validated(("password",))
    user = verification.verify(
        form["token"],
        by=caller.user_id if caller else None,
        **({name: form["password"]} if asks else {}),
    )
    return render_template("auth/verified.html", user=user)


@page("/console/sign-in-link", role=ANYBODY)
def show_sign_in_link() -> Page:
    """The button that signs in with a link that `bin/atrium setup` printed."""
    token = request.args.get("token", "")
    is_valid = mail_tokens.find(token, LinkPurpose.SIGN_IN) is not None
    form = Form({"token": token}, status=200 if is_valid else 400)
    return form.render("console/links/sign_in.html", valid=is_valid)


@page("/console/sign-in-link", "POST", role=ANYBODY)
def use_sign_in_link() -> Page | BaseResponse:
    """Sign in with the token, once."""
    form = forms.submitted("token")
    found = mail_tokens.consume(form["token"], LinkPurpose.SIGN_IN)
    if found is None:
        form.status = 400
        return form.render("console/links/sign_in.html", valid=False)
    return guard.start_session(found.user, url_for("console.show_home"), Proof.SETUP_LINK)


def _token_form() -> Form:
    return Form({"token": request.args.get("token", "")})


@page("/console/magic-link", role=ANYBODY)
def show_magic_link(form: Form | None = None) -> Page:
    """The button that signs in with a mailed link: mail scanners press none."""
    form = form or _token_form()
    user = magic_links.find_user(form["token"][:500])
    form.status = form.status if user else 400
    return form.render("console/links/magic_link.html", user=user)


@page("/console/magic-link", "POST", role=ANYBODY, form_page=show_magic_link)
def use_magic_link() -> BaseResponse:
    """Sign in with the token of a mailed link."""
    token = forms.submitted("token").validated(token=500)["token"]
    user = magic_links.consume(token, account_of_host())
    response = guard.start_session(user, url_for("console.show_home"), Proof.MAIL)
    realms.remember_account(response, user.account.slug)
    return response


@page("/console/undo-email-change", role=ANYBODY)
def show_undo_email_change(form: Form | None = None) -> Page:
    """The button that restores the old address: mail scanners press none."""
    form = form or _token_form()
    token = form["token"][:500]
    user, email = email_changes.find(token) or (None, None)
    form.status = form.status if user else 400
    request_of_factor = email_changes.factor_request(token)
    extra = request_of_factor.extra if request_of_factor else {}
    return form.render(
        "console/links/undo_email_change.html",
        user=user,
        email=email,
        methods=extra.get("methods", ()),
        mfa_token=extra.get("mfa_token"),
        options=json.dumps(extra.get("passkey_options")),
    )


@page("/console/undo-email-change", "POST", role=ANYBODY, form_page=show_undo_email_change)
def undo_email_change() -> BaseResponse:
    """Restore the old email address with the token of a mailed link."""
    form = forms.submitted("token", "code", "assertion", "mfa_token", "wait")
    _, email = email_changes.find(form["token"][:500]) or (None, None)
    token = form.validated(token=500)["token"]
    answer = second_factor.answer(form, form["mfa_token"])
    try:
        due_at = email_changes.undo(token, answer, waits=bool(form["wait"]))
    except MfaRequired as error:
        message = gettext("Enter a code, or use your passkey.")
        raise InvalidValues([problem("code", "required", message)]) from error
    if due_at:
        notice = gettext("Your address will be %(email)s again in 24 hours.", email=email)
    else:
        notice = gettext(
            "Your address is %(email)s again. Check your inbox to set a new password.", email=email
        )
    return redirect_with_notice(notice, "console.sign_in")


@page("/console/keep-email", role=ANYBODY)
def show_keep_email(form: Form | None = None) -> Page:
    """The button that keeps the present address: mail scanners press none."""
    form = form or _token_form()
    user = email_changes.find_kept(form["token"][:500])
    form.status = form.status if user else 400
    return form.render("console/links/keep_email.html", user=user)


@page("/console/keep-email", "POST", role=ANYBODY, form_page=show_keep_email)
def keep_email() -> BaseResponse:
    """Keep the present address with the token of a mailed link."""
    user = email_changes.keep(forms.submitted("token").validated(token=500)["token"])
    notice = gettext("Your address is still %(email)s.", email=user.email)
    return redirect_with_notice(notice, "console.sign_in")


@page("/console/invitations/<token>", role=ANYBODY)
def show_invitation(token: str, form: Form | None = None) -> Page:
    """The form that accepts an invitation."""
    invitation = invitations.public_view(token)
    invitations.require_enabled()
    if not invitation["is_valid"]:
        raise BadRequest(str(INVALID_INVITATION[str(invitation["status"])]))
    return (form or Form()).render(
        "console/links/invitation.html",
        invitation=invitation,
        token=token,
        takes_password=invitations.may_choose_password(token),
    )


@page("/console/invitations/<token>", "POST", role=ANYBODY, form_page=show_invitation)
def accept_invitation(token: str) -> BaseResponse:
    """Join the account and sign in to the console."""
    form = forms.submitted("name", "password")
    body = form.validated(("password",), name=200, password=MAX_PASSWORD_LENGTH)
    user = invitations.accept(token, body["password"], body["name"] or None)
    flash(gettext("Welcome to %(account)s.", account=user.account.name))
    guard.end_session("")  # the cookie is about to belong to another user
    return guard.start_session(user, url_for("console.show_home"), Proof.PASSWORD)
