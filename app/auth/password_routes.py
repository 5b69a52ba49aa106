"""`/auth/...password`: changed by who knows it, set anew by who has the address (spec 4.1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flask import request

from app.auth import lockout, password_resets
from app.auth import service as auth
from app.auth.answers import account_named
from app.auth.guard import principal
from app.auth.models import ApiKey
from app.auth.routes import blueprint
from app.auth.schemas import (
    MOST_KEYS_NAMED,
    ForgotBody,
    PasswordChange,
    PasswordSet,
    ResetBody,
    ResetToken,
)
from app.rest.access import across_accounts, public
from app.rest.schemas import Message

KEYS = {"active_api_keys": 1, "api_keys": ["nightly import"]}


@blueprint.route("/change-password", methods=["POST"])
@blueprint.arguments(
    PasswordChange,
    example={"current_password": "Correct-horse-1", "new_password": "Correct-horse-2"},
)
@blueprint.response(200, PasswordSet, example={"message": "The password is changed.", **KEYS})
@blueprint.fails(400, 403, 429)
def change_password(body: dict[str, Any]) -> dict[str, Any]:
    """Change the own password; all sessions end, and their access tokens.

    API keys stay unless `revoke_api_keys` is true. Who gets the present password wrong too often
    has to wait, as at a login.
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
@blueprint.response(200, Message, example={"message": "If there is such a user, ..."})
@blueprint.fails(400, 429)
@public
@across_accounts
def forgot_password(body: dict[str, Any]) -> dict[str, str]:
    """Mail a link to set a new password.

    A newer link ends the older ones. The answer is the same whether or not there is such a user.
    """
    account = auth.require_account(account_named(body))
    lockout.mails(account, body["email"], request.remote_addr, reset=True)
    password_resets.forgot(account, body["email"])
    return {"message": "If there is such a user, a link to set a new password is on its way."}


@blueprint.route("/reset-password", methods=["POST"])
@blueprint.arguments(ResetBody, example={"token": "AA0001-...", "new_password": "Correct-horse-2"})
@blueprint.response(200, PasswordSet, example={"message": "The password is set.", **KEYS})
@blueprint.fails(400)
@public
@across_accounts
def reset_password(body: dict[str, Any]) -> dict[str, Any]:
    """Set a new password by the token of the mailed link; all sessions end.

    Their access tokens end, too; API keys stay unless `revoke_api_keys` is true. A bad, used or
    expired token is 400 `invalid_token`.
    """
    keys = password_resets.reset(
        body["token"],
        body["new_password"],
        revoke_api_keys=body.get("revoke_api_keys", False),
    )
    return _password_set("The password is set. You can sign in now.", keys)


def _password_set(message: str, keys: Sequence[ApiKey]) -> dict[str, Any]:
    names = [key.name for key in keys[:MOST_KEYS_NAMED]]
    return {"message": message, "active_api_keys": len(keys), "api_keys": names}


@blueprint.route("/verify-reset-token/<token>", methods=["GET"])
@blueprint.response(
    200, ResetToken, example={"valid": True, "expires_at": "2026-11-20T13:00:00.123456Z"}
)
@public
@across_accounts
def verify_reset_token(token: str) -> dict[str, Any]:
    """Tell whether the token of a mailed link is still good, without using it up."""
    expires_at = password_resets.expiry(token)
    return {"valid": expires_at is not None, "expires_at": expires_at}
