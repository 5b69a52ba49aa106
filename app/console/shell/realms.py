"""The account of a sign-in form: the one of its address, and the last one of this browser."""

from __future__ import annotations

from flask import request
from werkzeug.wrappers import Response

from app import config
from app.auth import lockout
from app.auth.guard import account_of_host
from app.console.shell.forms import Form
from app.sso import email_domains

COOKIE, DAYS = "atrium_account", 365
MAX_LENGTH, MAX_EMAIL = 200, 320


def account_of(form: Form) -> str | None:
    """The account of a form: the one it names, of the host, or of the address's domain.

    Raises TooManyRequests.
    """
    return form["account"] or account_of_host() or discovered(form).slug


def discovered(form: Form) -> email_domains.Realm:
    """The realm in which users of the address's domain sign in. Raises TooManyRequests."""
    if "@" not in form["email"]:
        return email_domains.Realm()
    count_look_up()
    return email_domains.discover(form["email"][:MAX_EMAIL])


def count_look_up() -> None:
    """Count a look-up of an account. Raises TooManyRequests."""
    lockout.count_discovery(request.remote_addr)


def suggested_account() -> str:
    """The slug of the account that a form of this browser last signed in to, or an empty text."""
    return request.cookies.get(COOKIE, "").replace("\0", "")[:MAX_LENGTH]


def remember_account(response: Response, slug: str) -> None:
    """Let this browser suggest the account from now on."""
    response.set_cookie(
        COOKIE,
        slug,
        max_age=DAYS * 24 * 3600,
        httponly=True,
        samesite="Lax",
        secure=config.current().production,
    )
