"""Electronic signatures: a user signs a write with a password and a reason (contract section 7).

`X-ES-Username` is the email address of a user of the account, who need not be the caller.
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
HEADERS = (USERNAME, PASSWORD, REASON)
LONGEST_REASON = 1000


@dataclass(frozen=True)
class Signature:
    """Who signed, why and when."""

    username: str
    reason: str
    timestamp: datetime


def verify_headers(headers: Headers, caller: Principal, address: str | None) -> Signature | None:
    """The verified signature in the request headers, if any. Raises Malformed, Unauthorized."""
    values = {name: _text(headers.get(name, "")) for name in HEADERS}
    return verify(values, caller, address)


def verify(values: Mapping[str, str], caller: Principal, address: str | None) -> Signature | None:
    """The verified signature in these header values. Raises Malformed, Unauthorized."""
    if not any(values.values()):
        return None
    for name, value in values.items():
        if not value or "\0" in value or len(value) > LONGEST_REASON:
            message = f"A signature has all of {', '.join(values)}."
            raise Malformed.at("header", name, msg=message, type="signature")
    account_id = caller.require_account_id()
    with lockout.limit_guesses(account_id, values[USERNAME], address):
        user = login_users.find(account_id, values[USERNAME]).user
        signer = user if user and user.is_active and user.email_verified else None
        if not passwords.verify(values[PASSWORD], signer.password_hash if signer else None):
            message = "The electronic signature is invalid."
            raise Unauthorized(message, error="authentication_failed")
    return Signature(signer.email if signer else "", values[REASON], clock.now())


def _text(header: str) -> str:
    """Decode a header as UTF-8; WSGI servers decode all headers as Latin-1."""
    try:
        return header.encode("latin-1").decode().strip()
    except UnicodeError:
        return header.strip()


def require() -> None:
    """Raise SignatureRequired (428) for an unsigned write."""
    if actor.current().es_username is None:
        raise SignatureRequired
