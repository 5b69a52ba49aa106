"""Electronic signatures: a person vouches for a write with a password and a reason (contract 7).

`X-ES-Username` is the address of a user of the account written in, who need not be the caller.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from werkzeug.datastructures import Headers

from app import clock
from app.auth import lockout, login_users, passwords
from app.auth.principal import Principal
from app.context import actor
from app.errors import Malformed, SignatureRequired, Unauthorized

USERNAME, PASSWORD, REASON = "X-ES-Username", "X-ES-Password", "X-ES-Reason"
LONGEST_REASON = 1000


@dataclass(frozen=True)
class Signature:
    """Who signed, why and when."""

    username: str
    reason: str
    timestamp: datetime


def check(headers: Headers, caller: Principal, address: str | None) -> Signature | None:
    """The signature that a request carries, if any. Raises Malformed, Unauthorized."""
    given = {name: _text(headers.get(name, "")) for name in (USERNAME, PASSWORD, REASON)}
    return checked(given, caller, address)


def checked(given: Mapping[str, str], caller: Principal, address: str | None) -> Signature | None:
    """The same of what stands in those headers, as text."""
    if not any(given.values()):
        return None
    for name, value in given.items():
        if not value or "\0" in value or len(value) > LONGEST_REASON:
            message = f"A signature has all of {', '.join(given)}."
            raise Malformed.at("header", name, msg=message, type="signature")
    account_id = caller.one_account()
    with lockout.guesses(account_id, given[USERNAME], address):
        user = login_users.find(account_id, given[USERNAME]).member
        known = user if user and user.is_active and user.email_verified else None
        if not passwords.verify(given[PASSWORD], known.password_hash if known else None):
            message = "The electronic signature is not valid."
            raise Unauthorized(message, error="authentication_failed")
    return Signature(known.email if known else "", given[REASON], clock.now())


def _text(header: str) -> str:
    """A header in UTF-8, else in Latin-1, as which the server takes all of them."""
    try:
        return header.encode("latin-1").decode().strip()
    except UnicodeError:
        return header.strip()


def require() -> None:
    """Refuse a write that nobody has signed. Raises SignatureRequired (428)."""
    if actor.current().es_username is None:
        raise SignatureRequired
