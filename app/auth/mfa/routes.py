"""`/auth/mfa` and `/auth/passkeys`: second factors of the caller, and signing in with them.

For admins a report of their users' factors, and resets.
"""

from __future__ import annotations

import marshmallow as ma
from flask import Response, request

from app.accounts import own_account_routes, sign_in_settings, user_routes, users
from app.accounts.types import Body, Query
from app.auth import lockout, signatures
from app.auth import service as auth
from app.auth.guard import principal, signed_in_caller
from app.auth.mfa import challenges, gate, passkeys, recovery_codes, report, totp
from app.auth.mfa import service as mfa
from app.auth.mfa.challenges import Step
from app.auth.mfa.gate import Proof
from app.auth.mfa.models import KINDS, Method, SecondFactor
from app.auth.mfa.schemas import (
    EXAMPLE,
    EnrolledFactor,
    FactorName,
    FactorView,
    MfaVerification,
    NewPasskey,
    NewTotp,
    OwnFactors,
    PasskeyOptions,
    PasskeySignIn,
    PasskeyStart,
    RecoveryCodes,
    SigningReason,
    SignInStep,
    TotpCode,
    TotpSecret,
)
from app.auth.mfa.service import Answer, Enrolled, Enrolling
from app.auth.responses import (
    origin,
    remember_device,
    sign_in_response,
    signed_in_body,
    with_refresh_cookie,
)
from app.auth.routes import blueprint
from app.auth.schemas import SignedIn
from app.types import JSONObject
from app.web import fields
from app.web.access import account_admin, public, signed_in, superadmin
from app.web.fields import doc
from app.web.paging import PageArgs, page_body, page_of
from app.web.schemas import View, example
from app.web.serialization import json_response

OPTIONS = {"token": EXAMPLE, "options": {"challenge": "q2x1...", "rpId": "api.example.com"}}
SECRET = {
    "secret": "JBSWY3DPEHPK3PXPJBSWY3DPEHPK3PXP",
    "otpauth_url": "otpauth://totp/Helpdesk%20%28Acme%29:alice%40acme.example?secret=JBSW...",
    "qr_svg": "<svg ...",
}
ASSERTION = {"id": "Zm9v...", "type": "public-key", "response": {}}


@blueprint.route("/mfa", methods=["GET"])
@blueprint.response(200, OwnFactors, example={"recovery_codes_left": 10})
@signed_in
def get_second_factors() -> dict[str, object]:
    """Get your second factors, and whether your account requires one.

    Without secrets. `required_from` is when you need one to sign in, after the grace period.
    """
    user = auth.get_user(principal())
    settings = user.account.settings
    return {
        "policy": sign_in_settings.mode(settings),
        "required_from": sign_in_settings.required_from(settings, user.role.name, user.created_at),
        "factors": gate.factors_of(user),
        "recovery_codes_left": recovery_codes.count(user),
    }


@blueprint.route("/mfa/verify", methods=["POST"])
@blueprint.arguments(
    MfaVerification, example={"mfa_token": EXAMPLE, "method": "totp", "code": "123456"}
)
@blueprint.response(200, SignedIn)
@blueprint.fails(401, 429)
@public(across_accounts=True)
def verify_second_factor(body: Body) -> Response:
    """Complete a sign-in with a second factor; the response is that of a login.

    `method` is one of the `methods` that the sign-in listed: `totp` and `recovery_code` need
    `code`, `passkey` needs `assertion`, made with the sign-in's `passkey_options`. A wrong or used
    code is a 401 `invalid_code`; an expired or used `mfa_token` a 401 `invalid_mfa_token`.
    """
    token = body["mfa_token"]
    answer = Answer(body["method"], body.get("code", ""), body.get("assertion"), token)
    user, challenge = mfa.verify_sign_in(token, answer)
    return sign_in_response(auth.sign_in(user, origin(), gate.proof_of(challenge), challenge))


@blueprint.route("/mfa/options", methods=["POST"])
@blueprint.response(200, PasskeyOptions, example=OPTIONS)
@signed_in
def get_reauthentication_options() -> dict[str, object]:
    """Get options for confirming your second factor with a passkey.

    For `POST /auth/reauthenticate`. 400 `passkeys_unavailable` where the service has no host name.
    """
    user = auth.get_user(principal())
    token = challenges.issue(Step.REAUTHENTICATION, user)
    keys = [factor for factor in gate.factors_of(user) if factor.kind == Method.PASSKEY]
    return {"token": token, "options": passkeys.request_options(token, keys)}


@blueprint.route("/mfa/totp", methods=["POST"])
@blueprint.arguments(NewTotp, required=False, example={"name": "Phone"})
@blueprint.response(201, TotpSecret, example=SECRET)
@blueprint.fails(401, 403, 409)
@public(shows_secret=True, across_accounts=True)
def create_totp(body: Body) -> dict[str, object]:
    """Create the secret of an authenticator app, before a code confirms it.

    Returns its secret, as text, address and QR code. It counts once a code has confirmed it; until
    then a new one replaces it. Needs a recent sign-in (403 `recent_sign_in_required`), or the
    `mfa_token` of a sign-in that requires a first factor.
    """
    user = _enrolling(body).user
    factor, secret = mfa.start_totp(user, body["name"])
    url = totp.otpauth_url(secret, user)
    return {
        "id": factor.id,
        "secret": secret,
        "otpauth_url": url,
        "qr_svg": totp.qr_svg(url),
    }


@blueprint.route("/mfa/totp/confirm", methods=["POST"])
@blueprint.arguments(TotpCode, example={"code": "123456"})
@blueprint.response(200, EnrolledFactor)
@blueprint.fails(400, 401, 403, 429)
@public(shows_secret=True, across_accounts=True)
def confirm_totp(body: Body) -> Response:
    """Confirm the secret of a new authenticator app by a code.

    With the first factor you get ten recovery codes, which are shown once, and your other sessions
    end. With `mfa_token`, this completes the sign-in (`signed_in`).
    """
    by = _enrolling(body)
    return _enrolled(by, mfa.confirm_totp(by, body["code"]))


@blueprint.route("/mfa/passkeys/options", methods=["POST"])
@blueprint.arguments(SignInStep, required=False, example={})
@blueprint.response(200, PasskeyOptions, example=OPTIONS)
@blueprint.fails(400, 401, 403, 409)
@public(across_accounts=True)
def get_registration_options(body: Body) -> dict[str, object]:
    """Get options for registering a passkey with `navigator.credentials.create`.

    Needs a recent sign-in or an `mfa_token`, as `POST /auth/mfa/totp` does. Passkeys belong to the
    host name of the service, and may be used on the account's `cors_origins` below that domain.
    """
    user = _enrolling(body).user
    token, options = mfa.start_passkey(user)
    return {"token": token, "options": options}


@blueprint.route("/mfa/passkeys", methods=["POST"])
@blueprint.arguments(
    NewPasskey, example={"token": EXAMPLE, "name": "Laptop", "credential": ASSERTION}
)
@blueprint.response(200, EnrolledFactor)
@blueprint.fails(400, 401, 403, 409)
@public(shows_secret=True, across_accounts=True)
def create_passkey(body: Body) -> Response:
    """Register a passkey.

    With the first factor you get ten recovery codes, which are shown once, and your other sessions
    end. With `mfa_token`, this completes the sign-in (`signed_in`).
    """
    by = _enrolling(body)
    enrolled = mfa.add_passkey(by, body["token"], body["name"], body["credential"])
    return _enrolled(by, enrolled)


@blueprint.route("/mfa/recovery-codes", methods=["POST"])
@blueprint.response(200, RecoveryCodes)
@blueprint.fails(409)
@signed_in(recent_sign_in=True, api_keys=False, shows_secret=True)
def renew_recovery_codes() -> dict[str, object]:
    """Get ten new recovery codes; older ones stop working."""
    return {"recovery_codes": mfa.renew_recovery_codes(auth.get_user(principal()))}


@blueprint.route("/mfa/factors/<uuid:factor_id>", methods=["PATCH"])
@blueprint.arguments(FactorName, example={"name": "New phone"})
@blueprint.response(200, FactorView)
@signed_in(api_keys=False)
def rename_second_factor(body: Body, factor_id: str) -> SecondFactor:
    """Rename a second factor.

    Of your own; another user's is a 404.
    """
    return mfa.rename(auth.get_user(principal()), factor_id, body["name"])


@blueprint.route("/mfa/factors/<uuid:factor_id>", methods=["DELETE"])
@blueprint.response(204)
@blueprint.fails(409)
@signed_in(recent_sign_in=True, api_keys=False)
def remove_second_factor(factor_id: str) -> Response:
    """Remove a second factor; with the last one, the recovery codes.

    The last one cannot be removed while your account requires one (409).
    """
    mfa.remove(auth.get_user(principal()), factor_id)
    return Response(status=204)


@blueprint.route("/signatures/options", methods=["POST"])
@blueprint.arguments(SigningReason, example={"reason": "Approved at the weekly review"})
@blueprint.response(200, PasskeyOptions, example=OPTIONS)
@signed_in
def get_signature_options(body: Body) -> JSONObject:
    """Get options for signing a write electronically with a passkey.

    Send the result with the write, within five minutes: `X-ES-Username`, the same reason as
    `X-ES-Reason`, and `X-ES-Passkey` with the base64url of the JSON `{"token", "assertion"}`. The
    authenticator must verify its user, who need not be the caller.
    """
    return signatures.options(body["reason"])


@blueprint.route("/passkeys/options", methods=["POST"])
@blueprint.arguments(PasskeyStart, required=False, example={})
@blueprint.response(200, PasskeyOptions, example=OPTIONS)
@blueprint.fails(400, 429)
@public(across_accounts=True)
def get_passkey_sign_in_options(body: Body) -> dict[str, object]:
    """Get options for signing in with a passkey alone.

    Without account or user: the browser offers the passkeys of this service. The token is valid for
    five minutes. 400 `passkeys_unavailable` where the service has no host name.
    """
    token = challenges.issue(Step.PASSKEY_SIGN_IN)
    return {"token": token, "options": passkeys.request_options(token)}


@blueprint.route("/passkeys/verify", methods=["POST"])
@blueprint.arguments(PasskeySignIn, example={"token": EXAMPLE, "assertion": ASSERTION})
@blueprint.response(200, SignedIn)
@blueprint.fails(401, 429)
@public(across_accounts=True)
def sign_in_with_passkey(body: Body) -> Response:
    """Sign in with a passkey alone; the response is that of a login.

    The authenticator must have verified its user (by PIN or biometrics), so that this counts as a
    second factor, too. An unknown or invalid passkey is a 401 `invalid_code`.
    """
    with lockout.limit_passkeys(request.remote_addr):
        user = mfa.verify_passkey(body["token"], body["assertion"])
    return sign_in_response(auth.sign_in(user, origin(), Proof.PASSKEY))


def _enrolling(body: Body) -> Enrolling:
    """The user who sets up a factor, with the sign-in under way or the caller's session."""
    if "mfa_token" in body:
        return mfa.enrolling(body["mfa_token"])
    caller = signed_in_caller()
    caller.require_recent_sign_in()
    return Enrolling(auth.get_user(caller), session_id=caller.session_id)


def _enrolled(by: Enrolling, enrolled: Enrolled) -> Response:
    signed_in = None
    if by.challenge is not None:
        proof = gate.proof_of(by.challenge)
        signed_in = auth.sign_in(by.user, origin(), proof, by.challenge)
    body = EnrolledFactor().dump(
        {
            "factor": enrolled.factor,
            "recovery_codes": enrolled.recovery_codes,
            "signed_in": signed_in and signed_in_body(signed_in),
        }
    )
    if signed_in is None:
        return json_response(body)
    response = with_refresh_cookie(body, signed_in.refresh_token)
    remember_device(response, signed_in.user)
    return response


class ReportArgs(PageArgs):
    """Which users to list."""

    second_factor = fields.Choice(
        report.STATES, **doc("Only users with or without a second factor.")
    )


@example(role="viewer")
class UserFactorsView(View):
    """A user's second factors."""

    user_id = fields.Id(attribute="user.id")
    email = ma.fields.String(attribute="user.email", metadata=fields.EMAIL)
    role = ma.fields.String(attribute="user.role_name")
    methods = ma.fields.List(fields.Choice(KINDS))
    required_from = fields.Timestamp(
        allow_none=True, **doc("When the user needs a second factor to sign in; null: never.")
    )


@own_account_routes.blueprint.route("/second-factors", methods=["GET"])
@own_account_routes.blueprint.arguments(ReportArgs, location="query")
@own_account_routes.blueprint.response(200, page_of(UserFactorsView))
@account_admin
def list_second_factors(args: Query) -> dict[str, object]:
    """List the active users of your account with the kinds of their second factors.

    Newest first.
    """
    part = (args["skip"], args["limit"], args.get("second_factor"))
    return page_body(*report.page(principal().require_account_id(), *part), args)


@own_account_routes.blueprint.route("/users/<uuid:user_id>/second-factors", methods=["DELETE"])
@own_account_routes.blueprint.response(204)
@account_admin(recent_sign_in=True, api_keys=False)
def reset_member_factors(user_id: str) -> Response:
    """Remove all second factors and recovery codes of a user of your account.

    All sessions of the user end, and the user gets a mail.
    """
    mfa.reset(users.get(principal().require_account_id(), user_id))
    return Response(status=204)


@user_routes.blueprint.route("/<uuid:user_id>/second-factors", methods=["DELETE"])
@user_routes.blueprint.response(204)
@superadmin(recent_sign_in=True, api_keys=False)
def reset_user_factors(user_id: str) -> Response:
    """Remove all second factors and recovery codes of a user.

    All sessions of the user end, and the user gets a mail.
    """
    mfa.reset(users.get(None, user_id))
    return Response(status=204)
