"""What every sign-in answers with, and where it comes from."""

from __future__ import annotations

from typing import Any

from flask import Response, request

from app import config, rest
from app.auth import sessions
from app.auth.guard import account_of_request
from app.auth.schemas import SignedIn
from app.auth.service import SignIn
from app.auth.sessions import Origin
from app.rest.responses import json_response

REFRESH_COOKIE = "service_refresh"
REFRESH_PATH = f"{rest.PREFIX}/auth"
SIGNED_IN = SignedIn()


def answer_sign_in(signed_in: SignIn, **more: Any) -> Response:
    """The answer to every sign-in: the tokens, the account, the user, and the cookie."""
    extra = {"account": signed_in.user.account, "user": signed_in.user}
    return _with_cookie(SIGNED_IN.dump(pair(signed_in) | extra) | more, signed_in.refresh_token)


def answer_pair(signed_in: SignIn) -> Response:
    """The answer to a refresh: the tokens, and the cookie."""
    return _with_cookie(pair(signed_in), signed_in.refresh_token)


def pair(signed_in: SignIn) -> dict[str, Any]:
    """The tokens of a sign-in."""
    return {
        "token": signed_in.access_token,
        "access_token": signed_in.access_token,
        "refresh_token": signed_in.refresh_token,
        "token_type": "bearer",
        "expires_in": config.current().access_token_expire_minutes * 60,
    }


def origin() -> Origin:
    """Where this request comes from."""
    return Origin(request.remote_addr, request.user_agent.string)


def account_named(body: dict[str, Any]) -> str | None:
    """The account that a request names, in its body or as all requests may."""
    told = account_of_request()  # refused where header and host disagree, whatever the body names
    return body.get("account") or told


def _with_cookie(body: dict[str, Any], refresh_token: str) -> Response:
    response = json_response(body)
    response.set_cookie(
        REFRESH_COOKIE,
        refresh_token,
        max_age=int(sessions.lifetime().total_seconds()),
        path=REFRESH_PATH,
        httponly=True,
        samesite="Lax",
        secure=config.current().production,
    )
    response.headers["Cache-Control"] = "no-store"
    return response
