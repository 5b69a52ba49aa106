"""`/auth/...password`: changing and resetting passwords; `/auth/sessions`: own sessions."""

from __future__ import annotations

from collections.abc import Sequence

from flask import Response

from app.accounts.types import Body, Query
from app.auth import password_resets, sessions
from app.auth import service as auth
from app.auth.guard import principal
from app.auth.models import ApiKey
from app.auth.responses import count_mail_request, requested_account
from app.auth.routes import blueprint
from app.auth.schemas import (
    MAX_KEY_NAMES,
    ForgotBody,
    PasswordChange,
    PasswordSet,
    ResetBody,
    ResetToken,
    SessionPage,
)
from app.web.access import public, signed_in
from app.web.paging import PageArgs, page_body
from app.web.schemas import Message

KEYS = {"active_api_keys": 1, "api_keys": ["nightly import"]}


@blueprint.route("/change-password", methods=["POST"])
@blueprint.arguments(
    PasswordChange,
    example={"current_password": "Correct-horse-1", "new_password": "Correct-horse-2"},
)
@blueprint.response(200, PasswordSet, example={"message": "The password is changed.", **KEYS})
@blueprint.fails(429)
@signed_in(api_keys=False)
def change_password(body: Body) -> dict[str, object]:
    """Change your password; all your sessions and access tokens end.

    API keys stay valid unless `revoke_api_keys` is true. Wrong current passwords are rate limited
    like logins. Users with a second factor need a recent sign-in, too (403
    `recent_sign_in_required`). Who may only sign in with a provider gets a 403
    `password_sign_in_off`.
    """
    keys = password_resets.change_own(
        principal(),
        body["current_password"],
        body["new_password"],
        revoke_api_keys=body.get("revoke_api_keys", False),
    )
    return _password_set("The password is changed. Sign in again.", keys)


@blueprint.route("/forgot-password", methods=["POST"])
@blueprint.arguments(ForgotBody, example={"account": "acme", "email": "alice@acme.example"})
@blueprint.response(200, Message, example={"message": "If the user exists, ..."})
@blueprint.fails(400, 429)
@public(across_accounts=True)
def forgot_password(body: Body) -> dict[str, str]:
    """Mail a link to set a new password.

    Of the links that you asked for, three stay valid until a password is set. The response does not
    reveal whether the user exists. Who may only sign in with a provider gets no mail.
    """
    account = auth.require_account(requested_account(body))
    source = count_mail_request(account, body["email"], reset=True)
    password_resets.request_reset(account, body["email"], source, body.get("redirect_uri"))
    return {"message": "If the user exists, a link to set a new password is on its way."}


@blueprint.route("/reset-password", methods=["POST"])
@blueprint.arguments(ResetBody, example={"token": "AA0001-...", "new_password": "Correct-horse-2"})
@blueprint.response(200, PasswordSet, example={"message": "The password is set.", **KEYS})
@blueprint.fails(400, 403)
@public(across_accounts=True)
def reset_password(body: Body) -> dict[str, object]:
    """Set a new password with a mailed token; all sessions and access tokens end.

    API keys stay valid unless `revoke_api_keys` is true. A wrong, used or expired token is a 400
    `invalid_token`. Who may only sign in with a provider gets a 403 `password_sign_in_off`.
    """
    keys = password_resets.reset(
        body["token"],
        body["new_password"],
        revoke_api_keys=body.get("revoke_api_keys", False),
    )
    return _password_set("The password is set. You can sign in now.", keys)


def _password_set(message: str, keys: Sequence[ApiKey]) -> dict[str, object]:
    names = [key.name for key in keys[:MAX_KEY_NAMES]]
    return {"message": message, "active_api_keys": len(keys), "api_keys": names}


@blueprint.route("/verify-reset-token/<token>", methods=["GET"])
@blueprint.response(
    200, ResetToken, example={"valid": True, "expires_at": "2026-11-20T13:00:00.123456Z"}
)
@public(across_accounts=True)
def verify_reset_token(token: str) -> dict[str, object]:
    """Check whether a mailed token is valid, without consuming it.

    Needs no credential. A wrong, used or expired token is a 200 with `valid: false`, not an error.
    """
    expires_at = password_resets.expiry(token)
    return {"valid": expires_at is not None, "expires_at": expires_at}


@blueprint.route("/sessions", methods=["GET"])
@blueprint.arguments(PageArgs, location="query")
@blueprint.response(200, SessionPage)
@signed_in
def list_sessions(args: Query) -> dict[str, object]:
    """List the caller's active sessions, the last used first.

    Includes sessions of the console (`kind`). Sessions that have ended or expired are left out; API
    keys are a list of their own (`/api-keys`).
    """
    own = sessions.user_key(principal())
    return page_body(*sessions.page(*own, args["skip"], args["limit"]), args)


@blueprint.route("/sessions/end-others", methods=["POST"])
@blueprint.response(204)
@signed_in(api_keys=False)
def end_other_sessions() -> Response:
    """End all of the caller's sessions but the one that makes the request.

    Console sessions end, too, and all tokens stop working at once. API keys stay valid.
    """
    sessions.end_others(principal())
    return Response(status=204)


@blueprint.route("/sessions/<uuid:session_id>", methods=["DELETE"])
@blueprint.response(204)
@signed_in
def end_session(session_id: str) -> Response:
    """End one of the caller's sessions; its tokens stop working at once.

    Also works for the session that makes the request. API keys stay valid. A 404 means that the
    session has ended, or is another user's.
    """
    sessions.end_active(*sessions.user_key(principal()), session_id)
    return Response(status=204)
