"""The account that an email address belongs to, where a form names none."""

from __future__ import annotations

from flask import request

from app.auth import lockout
from app.auth.guard import account_of_host
from app.console.shell.forms import Form
from app.sso import email_domains

MAX_EMAIL = 320


def account_of(form: Form) -> str | None:
    """The account of a form: the one it names, of the host, or of the address's domain.

    Raises TooManyRequests.
    """
    return form["account"] or account_of_host() or discovered(form).slug


def discovered(form: Form) -> email_domains.Realm:
    """Where users of the domain of the form's address sign in. Raises TooManyRequests."""
    if "@" not in form["email"]:
        return email_domains.Realm()
    lockout.count_discovery(request.remote_addr)
    return email_domains.discover(form["email"][:MAX_EMAIL])
