"""`/auth`: registration, verification, signing in and out (spec 4.1)."""

from __future__ import annotations

from typing import Any

from flask import Response, make_response, render_template, request

from app import rest
from app.accounts.models import User
from app.accounts.schemas import ACCOUNT, USER, AccountView, UserView
from app.auth import lockout, registration, verification
from app.auth import service as auth
from app.auth.answers import (
    REFRESH_COOKIE,
    REFRESH_PATH,
    account_named,
    answer_pair,
    answer_sign_in,
    origin,
)
from app.auth.guard import account_of_request, caller_if_any, principal, signed_in_caller
from app.auth.schemas import (
    PAIR,
    VERIFIED,
    Credentials,
    EmailBody,
    Me,
    OwnPassword,
    OwnProfile,
    RefreshBody,
    Registered,
    Registration,
    ResendBody,
    SignedIn,
    TokenBody,
    TokenPair,
    Verified,
)
from app.errors import AppError
from app.http import error_handlers, html
from app.rest.access import across_accounts, public
from app.rest.blueprint import Blueprint
from app.rest.openapi_text import PAGE_EXAMPLE
from app.rest.schemas import TEXT, Message

blueprint = Blueprint(
    "Authentication",
    __name__,
    url_prefix=f"{rest.PREFIX}/auth",
    description="Registering an account, and signing in and out.",
)
links = Blueprint(
    "Links", __name__, description="Addresses that mails contain; without the version prefix."
)


@blueprint.route("/register", methods=["POST"])
@blueprint.arguments(
    Registration,
    example={
        "account_name": "Acme",
        "account_slug": "acme",
        "email": "alice@acme.example",
        "password": "Correct-horse-1",
    },
)
@blueprint.response(
    201,
    Registered,
    example={"message": "Please check your inbox: ...", "account": ACCOUNT, "user": USER},
)
@blueprint.fails(400, 403, 409, 429)
@public
@across_accounts
def register(body: dict[str, Any]) -> dict[str, Any]:
    """Register an account with its first user, who becomes its admin.

    The slug is derived from the name where it is absent. A mail with a verification link follows;
    there is no signing in before the address is verified. Where there is one account only, the user
    joins it as viewer, and the answer is the same for an address that is known already, whose owner
    is told by mail; only signing in with the password sent here shows that it was not taken on.
    Where nobody may register, it is a 403.
    """
    user = registration.register(
        name=body.get("account_name") or body.get("name"),
        slug=body.get("account_slug") or body.get("account"),
        email=body["email"],
        password=body["password"],
        address=request.remote_addr,
    )
    message = "Please check your inbox: a mail on its way to you says how to go on."
    return {"message": message, "account": user.account, "user": user}


@blueprint.route("/login", methods=["POST"])
@blueprint.arguments(
    Credentials,
    example={"account": "acme", "email": "alice@acme.example", "password": "Correct-horse-1"},
)
@blueprint.response(200, SignedIn, example={**PAIR, "account": ACCOUNT, "user": USER})
@blueprint.fails(400, 401, 429)
@public
@across_accounts
def login(body: dict[str, Any]) -> Response:
    """Sign in by account, address and password.

    An unknown account, an unknown user, a wrong password and an inactive user are answered alike:
    401 `authentication_failed`. With the right password but an address not yet verified:
    401 `email_not_verified`. The refresh token is also set as an HttpOnly cookie.
    """
    signed_in = auth.login(
        account=account_named(body),
        email=body["email"],
        password=body["password"],
        origin=origin(),
    )
    return answer_sign_in(signed_in)


@blueprint.route("/refresh", methods=["POST"])
@blueprint.arguments(RefreshBody, required=False, example={"refresh_token": "eyJhbGciOi..."})
@blueprint.response(200, TokenPair, example=PAIR)
@blueprint.fails(400, 401, 403, 404)
@public
@across_accounts
def refresh(body: dict[str, Any]) -> Response:
    """Trade a refresh token for a new pair.

    Each serves once. One that is used again is a 401 and ends all tokens that grew from the same
    sign-in. Where the host name or `X-Account-ID` names another account, it is a 403 as elsewhere,
    and the token is not used up.
    """
    token = body.get("refresh_token") or request.cookies.get(REFRESH_COOKIE, "")
    return answer_pair(auth.refresh(token, account_of_request()))


@blueprint.route("/reauthenticate", methods=["POST"])
@blueprint.arguments(OwnPassword, example={"password": "Correct-horse-1"})
@blueprint.response(200, TokenPair, example=PAIR)
@blueprint.fails(400, 403, 429)
def reauthenticate(body: dict[str, Any]) -> Response:
    """Give the password again, for what needs a recent sign-in.

    Answers new tokens of the same session; the refresh token from before is used up. For 15 minutes
    the access token changes addresses, makes API keys, and changes provider settings, redirect
    addresses and the members of `pii_access`; an older one is 403 `recent_sign_in_required` there.
    Who has no password signs in anew by the provider. Who gets it wrong too often has to wait, as
    at a login.
    """
    return answer_pair(auth.reauthenticate(principal(), body["password"]))


@blueprint.route("/logout", methods=["POST"])
@blueprint.arguments(RefreshBody, required=False, example={"refresh_token": "eyJhbGciOi..."})
@blueprint.response(200, Message, example={"message": "You are signed out."})
@blueprint.fails(403)
def logout(body: dict[str, Any]) -> Response:
    """Sign out.

    Ends the session of the given refresh token or the cookie's; without either, all of the
    caller's. Their access tokens end, too. A cookie that is no valid refresh token of the caller
    counts for nothing.
    """
    cookie = request.cookies.get(REFRESH_COOKIE, "")
    auth.logout(principal(), body.get("refresh_token"), cookie=cookie)
    response = make_response({"message": "You are signed out."})
    response.delete_cookie(REFRESH_COOKIE, path=REFRESH_PATH)
    return response


@blueprint.route("/me", methods=["GET"])
@blueprint.response(
    200,
    Me,
    example={
        **USER,
        "user_id": USER["id"],
        "user": USER,
        "account": ACCOUNT,
        "is_superadmin": False,
    },
)
def me() -> Response:
    """Get the caller."""
    user = auth.user_of(principal())
    shown = UserView().dump(user)
    return make_response(
        {
            **shown,
            "user_id": user.id,
            "user": shown,
            "account": AccountView().dump(user.account),
            "is_superadmin": principal().is_superadmin,
        }
    )


@blueprint.route("/send-verification", methods=["POST"])
@blueprint.arguments(EmailBody, required=False, example={"email": "alice@acme.example"})
@blueprint.response(200, Message, example={"message": "A new link is on its way."})
@blueprint.fails(403, 429)
def send_verification(body: dict[str, Any]) -> dict[str, str]:
    """Mail a new verification link.

    To the caller, or, where the caller is an admin, to a user of the own account.
    """
    verification.send(principal(), body.get("email"))
    return {"message": "A new link is on its way."}


@blueprint.route("/resend-verification", methods=["POST"])
@blueprint.arguments(
    ResendBody, required=False, example={"account": "acme", "email": "alice@acme.example"}
)
@blueprint.response(200, Message, example={"message": "If there is such a user, ..."})
@blueprint.fails(400, 401, 403, 429)
@public
@across_accounts
def resend_verification(body: dict[str, Any]) -> dict[str, str]:
    """Mail a new verification link, without signing in.

    A newer link ends the older ones. The answer is the same whether or not there is such a user.
    Without an address, it goes to the caller, who must then be signed in.
    """
    if "email" in body:
        account = auth.require_account(account_named(body))
        lockout.mails(account, body["email"], request.remote_addr)
        verification.resend(account, body["email"])
    else:
        verification.send(signed_in_caller(), None)
    return {"message": "If there is such a user who is not verified, a new link is on its way."}


@blueprint.route("/verify-email", methods=["POST"])
@blueprint.arguments(TokenBody, example={"token": "AA0001-..."})
@blueprint.response(200, Verified, example=VERIFIED)
@blueprint.fails(400, 409)
@public
@across_accounts
def verify_email_by_api(body: dict[str, Any]) -> dict[str, Any]:
    """Verify an address by the token of the mailed link.

    A bad, used or expired token is 400 `invalid_token`. Sessions, access tokens, API keys and
    identities at providers that were there while nobody had proved the address end: they may be
    somebody else's. They stay where the token comes with an access token of that user.
    """
    user = verification.verify(body["token"], by=caller_if_any())
    return {"message": VERIFIED["message"], "user": user}


@links.route("/auth/verify-email", methods=["GET"])
@links.arguments(TokenBody, location="query")
@links.response(200, Verified, example=VERIFIED)
@links.alt_response(
    200,
    schema=TEXT,
    content_type="text/html",
    example=PAGE_EXAMPLE,
    description="To a browser, a page.",
)
@links.fails(400, 409)
@public
@across_accounts
def verify_email(args: dict[str, Any]) -> Any:
    """Verify an address: the link in the mail.

    A browser gets a page, of a bad link too; every other client JSON.
    """
    if request.method == "HEAD":  # a mail scanner that looks at the link must not use it up
        return Response()
    user = verification.verify(args["token"])
    if html.prefers_html():
        return html.add_security_headers(
            make_response(render_template("auth/verified.html", email=user.email))
        )
    return {"message": VERIFIED["message"], "user": user}


def _tell_of_link(error: AppError) -> Response:
    if not html.prefers_html():
        return error_handlers.json_error(error)
    page = render_template("auth/not_verified.html", problem=error.message)
    return html.add_security_headers(make_response(page, error.status, error.headers))


links.record_once(
    lambda state: error_handlers.register_error_page(state.app, "/auth/verify-email", _tell_of_link)
)


@blueprint.route("/me", methods=["PATCH"])
@blueprint.arguments(OwnProfile, example={"name": "Alice"})
@blueprint.response(200, UserView, example=USER)
@blueprint.fails(400, 403, 429)
def update_me(body: dict[str, Any]) -> User:
    """Change the own name or address.

    A new address is mailed a link, and becomes the user's when the link is followed; the old one is
    then mailed a link that takes it back for 7 days. It needs a recent sign-in, or
    `current_password` (403 `recent_sign_in_required`).
    """
    return verification.change_profile(principal(), body, request.remote_addr)
