"""Responses of sign-ins, and what sign-in requests have in common."""

from __future__ import annotations

from collections.abc import Mapping

from flask import Response, request
from werkzeug.wrappers import Response as BaseResponse

from app import config, web
from app.accounts.models import User
from app.accounts.sign_in_settings import SERVICE_LIMITS
from app.accounts.types import Body
from app.auth import devices, lockout
from app.auth.devices import Origin
from app.auth.guard import account_of_request
from app.auth.login_users import LoginUser
from app.auth.schemas import SignedIn
from app.auth.service import SignIn
from app.auth.tokens import BEARER
from app.web.serialization import json_response

REFRESH_COOKIE = "service_refresh"
REFRESH_PATH = f"{web.PREFIX}/auth"
SIGNED_IN = SignedIn()


def sign_in_response(signed_in: SignIn, **extra: object) -> Response:
    """The response to a sign-in: tokens, account, user, and the refresh cookie."""
    body = SIGNED_IN.dump(signed_in_body(signed_in)) | extra
    response = with_refresh_cookie(body, signed_in.refresh_token)
    remember_device(response, signed_in.user)
    return response


def remember_device(response: BaseResponse, user: User | LoginUser) -> None:
    """Mark this browser as a device of the user."""
    response.set_cookie(
        devices.COOKIE,
        devices.cookie_value(request.cookies.get(devices.COOKIE, ""), user),
        max_age=devices.DAYS * 24 * 3600,
        httponly=True,
        samesite="Lax",
        secure=config.current().production,
    )


def signed_in_body(signed_in: SignIn) -> dict[str, object]:
    """The body of a sign-in, for `SignedIn` to dump."""
    return token_pair(signed_in) | {"account": signed_in.user.account, "user": signed_in.user}


def token_response(signed_in: SignIn) -> Response:
    """The response to a refresh: tokens and the refresh cookie."""
    return with_refresh_cookie(token_pair(signed_in), signed_in.refresh_token)


def token_pair(signed_in: SignIn) -> dict[str, object]:
    return {
        "token": signed_in.access_token,
        "access_token": signed_in.access_token,
        "refresh_token": signed_in.refresh_token,
        "token_type": BEARER,
        "expires_in": signed_in.expires_in,
    }


def count_mail_request(account: str, email: str, *, reset: bool = False) -> str:
    """Count this request for a mail; returns who asked. Raises TooManyRequests past the limits."""
    device = request.cookies.get(devices.COOKIE, "")
    return lockout.count_mail_request(account, email, request.remote_addr, device, reset=reset)


def origin() -> Origin:
    """The client address, user agent and device cookie of this request."""
    device = request.cookies.get(devices.COOKIE, "")
    return Origin(request.remote_addr, request.user_agent.string, device)


def requested_account(body: Body) -> str | None:
    """The account named in the body, the X-Account-ID header or the host name."""
    account = account_of_request()  # always: it raises if header and host disagree
    return body.get("account") or account


def with_refresh_cookie(body: Mapping[str, object], refresh_token: str) -> Response:
    response = json_response(body)
    response.set_cookie(
        REFRESH_COOKIE,
        refresh_token,
        max_age=int(SERVICE_LIMITS.lifetime.total_seconds()),
        path=REFRESH_PATH,
        httponly=True,
        samesite="Lax",
        secure=config.current().production,
    )
    response.headers["Cache-Control"] = "no-store"
    return response
