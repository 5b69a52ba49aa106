"""`/auth`: registration, verification, signing in and out."""

from __future__ import annotations

from flask import Response, make_response, request

from app import config, web
from app.accounts.attributes import Kind
from app.accounts.models import User
from app.accounts.schemas import API_KEY, JWT, AccountView, UserView
from app.accounts.types import Body
from app.auth import registration, verification
from app.auth import service as auth
from app.auth.guard import account_of_request, principal, signed_in_caller, user_id_if_signed_in
from app.auth.mfa.service import Answer
from app.auth.registration import NewRegistration
from app.auth.responses import (
    REFRESH_COOKIE,
    REFRESH_PATH,
    count_mail_request,
    origin,
    requested_account,
    sign_in_response,
    token_response,
)
from app.auth.schemas import (
    VERIFIED,
    AddressVerification,
    Credentials,
    EmailBody,
    Me,
    OwnProfile,
    OwnUserView,
    Reauthentication,
    RefreshBody,
    Registered,
    Registration,
    ResendBody,
    SignedIn,
    SignOutBody,
    TokenPair,
    VerifiedAddress,
)
from app.collections import attribute_values
from app.web.access import public, signed_in
from app.web.blueprint import Blueprint
from app.web.schemas import Message

blueprint = Blueprint(
    "Authentication",
    __name__,
    url_prefix=f"{web.PREFIX}/auth",
    description="Register an account, sign in and sign out.",
)
links = Blueprint("Links", __name__, description="Links in mails, outside the versioned prefix.")


@blueprint.route("/register", methods=["POST"])
@blueprint.arguments(
    Registration,
    example={
        "account_name": "Acme",
        "account_slug": "acme",
        "name": "Alice Adams",
        "email": "alice@acme.example",
        "password": "Correct-horse-1",
    },
)
@blueprint.response(201, Registered, example={"message": "Check your inbox: ..."})
@blueprint.fails(400, 403, 409, 429)
@public(across_accounts=True)
def register(body: Body) -> dict[str, object]:
    """Register an account with its first user, who becomes its admin.

    `account_name` is the account's name, in any script, and `name` the user's, unless nothing else
    names the account. The slug defaults to one derived from the account's name, else to the
    account's code. The user gets a verification link by mail and
    can sign in once the address is verified. In single-tenant mode, the user joins the account as a
    viewer; for an address that is already in use the response is the same, and the owner gets a
    mail. So does an address whose domain the named account owns, with the role of the domain, if
    the domain has `auto_join`; the mailed link then creates the user and sets the password. If
    registration is closed, it is a 403.
    """
    slug = body.get("account_slug") or body.get("account")
    name, user_name = body.get("account_name"), (body.get("name") or "").strip() or None
    if not name and not slug and not config.current().single_tenant:
        name, user_name = user_name, None
    new = NewRegistration(
        name,
        slug,
        body["email"],
        body["password"],
        user_name,
        request.remote_addr,
        body.get("redirect_uri"),
    )
    user = registration.register(new)
    message = "Check your inbox: we have sent you a mail with the next steps."
    return {"message": message, "account": user.account, "user": user}


@blueprint.route("/login", methods=["POST"])
@blueprint.arguments(
    Credentials,
    example={"account": "acme", "email": "alice@acme.example", "password": "Correct-horse-1"},
)
@blueprint.response(200, SignedIn)
@blueprint.fails(400, 401, 429)
@public(across_accounts=True)
def login(body: Body) -> Response:
    """Sign in with account, email address and password.

    An unknown account, an unknown user, a wrong password and an inactive user all get the same 401
    `authentication_failed`. The right password with an unverified address gets a 401
    `email_not_verified`. A user with a second factor gets a 401 `mfa_required` with an `mfa_token`
    of five minutes for `POST /auth/mfa/verify`, the `methods`, and `passkey_options`; one whose
    account requires a first one, a 401 `mfa_enrolment_required`. The refresh token is also set as
    an HttpOnly cookie.
    """
    signed_in = auth.login(
        account=requested_account(body),
        email=body["email"],
        password=body["password"],
        origin=origin(),
    )
    return sign_in_response(signed_in)


@blueprint.route("/refresh", methods=["POST"])
@blueprint.arguments(RefreshBody, required=False, example={"refresh_token": "eyJhbGciOi..."})
@blueprint.response(200, TokenPair)
@blueprint.fails(400, 401, 403, 404)
@public(across_accounts=True)
def refresh(body: Body) -> Response:
    """Exchange a refresh token for a new pair.

    Each refresh token works once. Reuse gets a 401 and revokes all tokens of the same sign-in. If
    the host name or `X-Account-ID` names another account, it is a 403, and the token stays valid.
    """
    token = body.get("refresh_token") or request.cookies.get(REFRESH_COOKIE, "")
    return token_response(auth.refresh(token, account_of_request()))


@blueprint.route("/reauthenticate", methods=["POST"])
@blueprint.arguments(Reauthentication, example={"password": "Correct-horse-1"})
@blueprint.response(200, TokenPair)
@blueprint.fails(429)
@signed_in(api_keys=False)
def reauthenticate(body: Body) -> Response:
    """Confirm your password, and your second factor, for actions that need a recent sign-in.

    Returns new tokens of the same session; the previous refresh token is revoked. For 15 minutes
    the new access token may change addresses, create API keys, and change provider settings,
    redirect URIs and members of `pii_access`; older tokens get a 403 `recent_sign_in_required`.
    With a second factor set up, send `method` and `code`, or the `token` and `assertion` of a
    passkey, too. Users without either sign in again with their provider. Wrong passwords and codes
    are rate limited like logins; a wrong code is a 401 `invalid_code`.
    """
    return token_response(auth.reauthenticate(principal(), body.get("password"), _answer(body)))


def _answer(body: Body) -> Answer | None:
    if "method" not in body:
        return None
    return Answer(
        body["method"], body.get("code", ""), body.get("assertion"), body.get("token", "")
    )


@blueprint.route("/logout", methods=["POST"])
@blueprint.arguments(SignOutBody, required=False, example={"refresh_token": "eyJhbGciOi..."})
@blueprint.response(200, Message, example={"message": "You are signed out."})
@signed_in
def logout(body: Body) -> Response:
    """Sign out.

    Ends the session of the refresh token, or without one that of the access token that you send,
    including all its access tokens. `all` ends all of your sessions; API keys cannot do that, and
    end none without a refresh token. The refresh cookie is deleted.
    """
    cookie = request.cookies.get(REFRESH_COOKIE, "")
    everywhere = body.get("all", False)
    auth.logout(principal(), body.get("refresh_token"), cookie=cookie, everywhere=everywhere)
    response = make_response({"message": "You are signed out."})
    response.delete_cookie(REFRESH_COOKIE, path=REFRESH_PATH)
    return response


@blueprint.route("/me", methods=["GET"])
@blueprint.response(200, Me)
@signed_in
def get_me() -> Response:
    """Get the signed-in user.

    With an API key, the user who created it. `account` is the user's own, whatever `X-Account-ID`.
    """
    user = auth.get_user(principal())
    token_type = JWT if principal().api_key_id is None else API_KEY
    dumped = {**UserView().dump(user), "token_type": token_type}
    return make_response(
        {
            **dumped,
            "user_id": user.id,
            "user": dumped,
            "account": AccountView().dump(user.account),
            "is_superadmin": principal().is_superadmin,
            "language": user.language,
        }
    )


@blueprint.route("/send-verification", methods=["POST"])
@blueprint.arguments(EmailBody, required=False, example={"email": "alice@acme.example"})
@blueprint.response(200, Message, example={"message": "A new link is on its way."})
@blueprint.fails(429)
@signed_in
def send_verification(body: Body) -> dict[str, str]:
    """Mail a new verification link.

    It goes to your address; admins may name another user of their account.
    """
    verification.resend_as_caller(principal(), body.get("email"), body.get("redirect_uri"))
    return {"message": "A new link is on its way."}


@blueprint.route("/resend-verification", methods=["POST"])
@blueprint.arguments(
    ResendBody, required=False, example={"account": "acme", "email": "alice@acme.example"}
)
@blueprint.response(200, Message, example={"message": "If the user exists, ..."})
@blueprint.fails(400, 401, 403, 429)
@public(across_accounts=True)
def resend_verification(body: Body) -> dict[str, str]:
    """Mail a new verification link, without signing in.

    The last three links that you asked for stay valid. The response does not reveal whether the
    user exists. Without an address, the link goes to the caller, who must be signed in.
    """
    if "email" in body:
        account = auth.require_account(requested_account(body))
        source = count_mail_request(account, body["email"])
        verification.resend(account, body["email"], source, body.get("redirect_uri"))
    else:
        verification.resend_as_caller(signed_in_caller(), None, body.get("redirect_uri"))
    return {"message": "If the user exists and is unverified, a new link is on its way."}


@blueprint.route("/verify-email", methods=["POST"])
@blueprint.arguments(AddressVerification, example={"token": "AA0001-..."})
@blueprint.response(200, VerifiedAddress, example=VERIFIED)
@blueprint.fails(400, 403, 409, 429)
@public(across_accounts=True)
def verify_email(body: Body) -> dict[str, object]:
    """Verify an address with a mailed token.

    Pages for people should ask for the `password` that was chosen at registration, or set another
    as `new_password`: whoever registered the address may be somebody else.

    A wrong, used or expired token is a 400 `invalid_token`. Revokes all sessions, access tokens,
    API keys and provider identities created before the verification, as they may be somebody
    else's, unless the request carries an access token of that user.
    """
    user = verification.verify(
        body["token"],
        by=user_id_if_signed_in(),
        password=body.get("password"),
        new_password=body.get("new_password"),
    )
    return {"message": VERIFIED["message"], "user": user}


@blueprint.route("/me", methods=["PATCH"])
@blueprint.arguments(OwnProfile, example={"name": "Alice"})
@blueprint.response(200, OwnUserView, example={"language": None})
@blueprint.fails(429)
@signed_in
def update_me(body: Body) -> User:
    """Change your name, language or email address.

    A new address gets a link by mail and takes effect once the link is followed; the old address
    then gets a link that undoes the change within 7 days. Changing the address needs a recent
    sign-in (403 `recent_sign_in_required`) or, for users without a second factor,
    `current_password`. Where the domain of the address has `sso_only`, only an admin or the
    directory changes it (403 `address_managed`).
    """
    caller = principal()
    level = attribute_values.level_for_self(caller)
    return verification.change_profile(caller, attribute_values.replaced(Kind.USERS, body, level))
