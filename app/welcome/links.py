"""The pages that mailed links lead to, and those that request another link."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from flask import Response, flash, g, make_response, redirect, request, url_for
from werkzeug.wrappers import Response as BaseResponse

from app import config
from app.accounts.models import Account, User
from app.accounts.product import links as mailed
from app.accounts.product.settings import LinkKind
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
from app.auth.models import InvitationState
from app.auth.responses import count_mail_request
from app.auth.routes import links
from app.auth.schemas import VERIFIED, TokenBody, VerifiedAddress
from app.console.shell import brand, forms, guard, realms, second_factor
from app.console.shell.access import ANYBODY
from app.console.shell.blueprint import page
from app.console.shell.forms import (
    MAX_PASSWORD_LENGTH,
    Form,
    Page,
    error_text,
    redirect_with_notice,
)
from app.errors import AppError, InvalidValues, NotFound, problem
from app.web import error_handlers, html, urls
from app.web.access import public
from app.web.languages import gettext, lazy_gettext
from app.web.openapi_text import PAGE_EXAMPLE
from app.web.schemas import TEXT

CLOSED: Mapping[str, object] = {
    InvitationState.ACCEPTED: lazy_gettext(
        "This invitation was accepted already. Sign in with the password that you chose."
    ),
    InvitationState.EXPIRED: lazy_gettext(
        "This invitation has expired. Ask whoever invited you for a new one."
    ),
    InvitationState.CANCELLED: lazy_gettext(
        "This invitation is cancelled, or a newer one replaces it. Look for a newer mail, or ask"
        " whoever invited you."
    ),
}
NO_INVITATION = lazy_gettext(
    "This link leads to no invitation. A newer mail may replace it; otherwise ask whoever invited"
    " you for a new one."
)
# The pages of the console that earlier mails lead to.
FORMER = {
    "/console/forgot-password": "show_forgot_password",
    "/console/reset-password": "show_reset_password",
    "/console/magic-link": "show_magic_link",
    "/console/undo-email-change": "show_undo_email_change",
    "/console/keep-email": "show_keep_email",
    "/console/invitations/<token>": "show_invitation",
}


def _lead_on(token: str | None = None) -> BaseResponse:
    """Lead from a former address of a mailed link to the present one."""
    endpoint = FORMER[str(request.url_rule)]
    args = {**request.args.to_dict(), **({"token": token} if token else {})}
    return redirect(urls.with_query(url_for(f"welcome.{endpoint}"), args))


for path, target in FORMER.items():
    page(path, role=ANYBODY, endpoint=target)(_lead_on)


def _token_form() -> Form:
    return Form({"token": request.args.get("token", "")[:2_000]})


def _gone(form: Form, text: object, label: str | None = None, address: str = "") -> Page:
    """The page of a link that does not work: why, and the way on."""
    form.status = form.status if form.status >= 400 else 400
    return form.render("welcome/gone.html", text=text, label=label, address=address)


def sign_in_address(account: Account, user_id: str | None = None) -> str:
    """The sign-in page of an account: its own, the product's, or the hosted one."""
    hosted = url_for("welcome.sign_in", account=account.slug)
    address = mailed.page(LinkKind.SIGN_IN, account, user_id, default=hosted).address()
    # At an account's host name, cookies stay there.
    return address.removeprefix(config.current().base_url)


# Requests of a link


def _request_page(form: Form | None, **context: object) -> Page:
    account = request.args.get("account", "")[:200] or account_of_host() or ""
    form = form or Form({"account": account, "email": request.args.get("email", "")[:320]})
    brand.show_of_account(form["account"])
    return form.render("welcome/request_link.html", **context)


def _request_link(
    request_mail: Callable[[str, str, str], None], notice: str, *, reset: bool = False
) -> BaseResponse:
    """Request a mail; the answer does not reveal whether the user exists."""
    form = forms.submitted("account", "email")
    body = form.validated(("email",), account=200, email=realms.MAX_EMAIL)
    account = auth.require_account(realms.account_of(form))
    source = count_mail_request(account, body["email"], reset=reset)
    request_mail(account, body["email"], source)
    return redirect_with_notice(notice, "welcome.sign_in", account=form["account"] or None)


@page("/welcome/forgot-password", role=ANYBODY)
def show_forgot_password(form: Form | None = None) -> Page:
    """The form that requests a reset link."""
    return _request_page(
        form,
        title=gettext("Forgot your password?"),
        text=gettext("We mail you a link to set a new password."),
        action=url_for("welcome.forgot_password"),
    )


@page("/welcome/forgot-password", "POST", role=ANYBODY, form_page=show_forgot_password)
def forgot_password() -> BaseResponse:
    """Mail a reset link."""
    notice = gettext(
        "If this user exists, we have sent a link to set a new password. Check your inbox."
    )
    return _request_link(password_resets.request_reset, notice, reset=True)


@page("/welcome/resend-verification", role=ANYBODY)
def show_resend_verification(form: Form | None = None) -> Page:
    """The form that requests another link to verify an address."""
    return _request_page(
        form,
        title=gettext("Verify your email address"),
        text=gettext("We mail you a new link to verify your address."),
        action=url_for("welcome.resend_verification"),
    )


@page("/welcome/resend-verification", "POST", role=ANYBODY, form_page=show_resend_verification)
def resend_verification() -> BaseResponse:
    """Mail a verification link."""
    notice = gettext("If this address waits to be verified, we have sent a link. Check your inbox.")
    return _request_link(verification.resend, notice)


# Passwords


@page("/welcome/reset-password", role=ANYBODY)
def show_reset_password(form: Form | None = None) -> Page:
    """The form that sets a new password."""
    form = form or _token_form()
    slug = brand.show_of_token(form["token"])
    user = password_resets.user_for_token(form["token"])
    if user is None:
        text = gettext("This link is no longer valid. It works once, within an hour.")
        address = url_for("welcome.show_forgot_password", account=slug)
        return _gone(form, text, gettext("Request a new link"), address)
    brand.show(user.account.id)
    keys = password_resets.api_keys_for_token(form["token"])
    return form.render("welcome/reset.html", user=user, keys=keys)


@page("/welcome/reset-password", "POST", role=ANYBODY, form_page=show_reset_password)
def reset_password() -> Page | BaseResponse:
    """Set a new password with the token of a mailed link."""
    form = forms.submitted("token", "new_password", "revoke_api_keys")
    revoke = bool(form["revoke_api_keys"])
    body = form.validated(("new_password",), token=2_000, new_password=MAX_PASSWORD_LENGTH)
    user = password_resets.user_for_token(body["token"])
    brand.show(user.account.id if user else None)
    password_resets.reset(body["token"], body["new_password"], revoke_api_keys=revoke)
    address = sign_in_address(user.account) if user else url_for("welcome.sign_in")
    text = gettext("Your password is changed. Sign in with the new one.")
    if address.startswith("/"):
        flash(text)
        return redirect(address, 303)
    return _done(gettext("Your password is changed"), text, address)


def _done(title: str, text: str, address: str) -> Page:
    """The page after a change by a mailed link, which leads to the sign-in."""
    return Form().render("welcome/done.html", title=title, text=text, address=address)


# Addresses


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
    g.is_hosted = True
    guard.load_caller()
    return _link_page(*show_verify_email(Form({"token": args["token"]})))


def _link_page(page: str, status: int, headers: Mapping[str, str] = {}) -> Response:
    response = make_response(page, status, dict(headers))
    response.vary.add("Accept")
    return brand.add_headers(response)


def _link_error(error: AppError) -> Response:
    if html.wants_only_json():
        return error_handlers.json_error(error)
    g.is_hosted = True
    if error.status >= 500:
        brand.show_plain()
    page, _ = _gone(Form(), error_text(error.message))
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


@page("/welcome/verify-email", role=ANYBODY)
def show_verify_email(form: Form | None = None) -> Page:
    """The button that verifies an address: mail scanners press none."""
    form = form or _token_form()
    slug = brand.show_of_token(form["token"])
    user, email = verification.find(form["token"][:500]) or (None, None)
    if user is None:
        text = form.problem or error_text(mail_tokens.invalid_token().message)
        address = url_for("welcome.show_resend_verification", account=slug)
        return _gone(form, text, gettext("Request a new link"), address)
    brand.show(user.account_id)
    return form.render(
        "welcome/verify.html",
        user=user,
        email=email,
        is_first=email == user.email,
        asks_password=_asks_password(user),
    )


@page("/welcome/verify-email", "POST", role=ANYBODY, form_page=show_verify_email)
def verify_email() -> Page:
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
    text = gettext("%(email)s is verified. You can sign in now.", email=user.email)
    brand.show(user.account_id)
    return _done(gettext("Your address is verified"), text, sign_in_address(user.account))


@page("/welcome/undo-email-change", role=ANYBODY)
def show_undo_email_change(form: Form | None = None) -> Page:
    """The button that restores the old address: mail scanners press none."""
    form = form or _token_form()
    token = form["token"][:500]
    brand.show_of_token(token)
    user, email = email_changes.find(token) or (None, None)
    if user is None:
        text = gettext(
            "This link is no longer valid. It works once, within 7 days. If your address is still"
            " wrong, ask an admin of your account."
        )
        return _gone(form, text)
    request_of_factor = email_changes.factor_request(token)
    extra = request_of_factor.extra if request_of_factor else {}
    return form.render(
        "welcome/undo_email_change.html",
        user=user,
        email=email,
        methods=extra.get("methods", ()),
        mfa_token=extra.get("mfa_token"),
        options=json.dumps(extra.get("passkey_options")),
    )


@page("/welcome/undo-email-change", "POST", role=ANYBODY, form_page=show_undo_email_change)
def undo_email_change() -> BaseResponse:
    """Restore the old email address with the token of a mailed link."""
    form = forms.submitted("token", "code", "assertion", "mfa_token", "wait")
    user, email = email_changes.find(form["token"][:500]) or (None, None)
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
    slug = user.account.slug if user else None
    return redirect_with_notice(notice, "welcome.sign_in", account=slug)


@page("/welcome/keep-email", role=ANYBODY)
def show_keep_email(form: Form | None = None) -> Page:
    """The button that keeps the present address: mail scanners press none."""
    form = form or _token_form()
    brand.show_of_token(form["token"])
    user = email_changes.find_kept(form["token"][:500])
    if user is None:
        text = gettext(
            "This link is no longer valid. If your address has changed, ask an admin of your"
            " account."
        )
        return _gone(form, text)
    return form.render("welcome/keep_email.html", user=user)


@page("/welcome/keep-email", "POST", role=ANYBODY, form_page=show_keep_email)
def keep_email() -> BaseResponse:
    """Keep the present address with the token of a mailed link."""
    user = email_changes.keep(forms.submitted("token").validated(token=500)["token"])
    notice = gettext("Your address is still %(email)s.", email=user.email)
    return redirect_with_notice(notice, "welcome.sign_in", account=user.account.slug)


# Links that sign in


@page("/welcome/magic-link", role=ANYBODY)
def show_magic_link(form: Form | None = None) -> Page:
    """The button that signs in with a mailed link: mail scanners press none."""
    form = form or _token_form()
    slug = brand.show_of_token(form["token"])
    user = magic_links.find_user(form["token"][:500])
    if user is None:
        text = gettext(
            "This link is no longer valid. It works once, within 15 minutes, and a newer one"
            " replaces it."
        )
        address = url_for("welcome.sign_in", account=slug)
        return _gone(form, text, gettext("Request a new link"), address)
    return form.render("welcome/magic_link.html", user=user)


@page("/welcome/magic-link", "POST", role=ANYBODY, form_page=show_magic_link)
def use_magic_link() -> BaseResponse:
    """Sign in with the token of a mailed link."""
    token = forms.submitted("token").validated(token=500)["token"]
    user = magic_links.consume(token, account_of_host())
    response = guard.start_session(user, brand.landing(user), Proof.MAIL)
    realms.remember_account(response, user.account.slug)
    return response


@page("/welcome/invitation", role=ANYBODY)
def show_invitation(form: Form | None = None) -> Page:
    """The form that accepts an invitation."""
    form = form or _token_form()
    slug = brand.show_of_token(form["token"])
    try:
        invitation = invitations.public_view(form["token"])
    except NotFound:
        form.status = 404
        return _gone(form, NO_INVITATION)
    invitations.require_enabled()
    if not invitation["is_valid"]:
        was_accepted = invitation["status"] == InvitationState.ACCEPTED
        label = gettext("Sign in") if was_accepted else None
        address = url_for("welcome.sign_in", account=slug)
        text = CLOSED.get(str(invitation["status"]), CLOSED[InvitationState.CANCELLED])
        return _gone(form, text, label, address)
    return form.render(
        "welcome/invitation.html",
        invitation=invitation,
        account=slug,
        takes_password=invitations.may_choose_password(form["token"]),
    )


@page("/welcome/invitation", "POST", role=ANYBODY, form_page=show_invitation)
def accept_invitation() -> BaseResponse:
    """Join the account, and sign in."""
    form = forms.submitted("token", "name", "password")
    body = form.validated(("password",), token=500, name=200, password=MAX_PASSWORD_LENGTH)
    user = invitations.accept(body["token"], body["password"], body["name"] or None)
    flash(gettext("Welcome to %(account)s.", account=user.account.name))
    guard.end_session("")  # the cookie is about to belong to another user
    return guard.start_session(user, brand.landing(user), Proof.PASSWORD)
