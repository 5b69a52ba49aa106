"""The account that a form of this browser last signed in to: the sign-in page suggests it."""

from __future__ import annotations

from flask import request
from werkzeug.wrappers import Response

from app import config

COOKIE, DAYS = "atrium_account", 365
MAX_LENGTH = 200


def get() -> str:
    """The slug of the account, or an empty text."""
    return request.cookies.get(COOKIE, "").replace("\0", "")[:MAX_LENGTH]


def remember(response: Response, slug: str) -> None:
    """Let this browser suggest the account from now on."""
    response.set_cookie(
        COOKIE,
        slug,
        max_age=DAYS * 24 * 3600,
        httponly=True,
        samesite="Lax",
        secure=config.current().production,
    )
