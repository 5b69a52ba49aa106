"""Electronic signatures: a user signs a write with a password or passkey.

`X-ES-Username` is the email address of a user of the account, who need not be the caller.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

import orjson
from werkzeug.datastructures import Headers

from app import clock, db
from app.accounts.models import User
from app.auth import lockout, login_users, passwords
from app.auth.login_users import LoginUser
from app.auth.mfa import challenges, passkeys
from app.auth.mfa.challenges import Step
from app.auth.principal import Principal
from app.context import actor
from app.errors import Malformed, SignatureRequired, Unauthorized
from app.types import JSONObject

USERNAME, PASSWORD, REASON = "X-ES-Username", "X-ES-Password", "X-ES-Reason"
PASSKEY = "X-ES-Passkey"
HEADERS = (USERNAME, PASSWORD, PASSKEY, REASON)
LONGEST, LONGEST_PASSKEY = 1000, 6000


@dataclass(frozen=True)
class Signature:
    """The signer, the reason and the time."""

    username: str
    reason: str
    timestamp: datetime
    method: str | None = None
    """`passkey`; None for a password."""


def verify_headers(headers: Headers, caller: Principal, address: str | None) -> Signature | None:
    """The verified signature in the request headers, if any. Raises Malformed, Unauthorized."""
    values = {name: _text(headers.get(name, "")) for name in HEADERS}
    return verify(values, caller, address)


def verify(values: Mapping[str, str], caller: Principal, address: str | None) -> Signature | None:
    """The verified signature in these header values. Raises Malformed, Unauthorized."""
    if not any(values.values()):
        return None
    by_passkey = bool(values.get(PASSKEY))
    for name in (USERNAME, PASSKEY if by_passkey else PASSWORD, REASON):
        value, longest = values.get(name, ""), LONGEST_PASSKEY if name == PASSKEY else LONGEST
        if not value or "\0" in value or len(value) > longest:
            message = f"A signature has {USERNAME}, {REASON}, and {PASSWORD} or {PASSKEY}."
            raise Malformed.at("header", name, msg=message, type="signature")
    account_id = caller.require_account_id()
    user = login_users.find(account_id, values[USERNAME]).user
    with (
        lockout.publishing_failures(account_id, user.id if user else None, values[USERNAME]),
        lockout.limit_guesses(account_id, values[USERNAME], address),
    ):
        signer = user if user and user.is_active and user.email_verified else None
        if by_passkey:
            is_right = signer is not None and _accepts_passkey(values, signer)
        else:
            is_right = passwords.verify(values[PASSWORD], signer.password_hash if signer else None)
        if signer is None or not is_right:
            message = "The electronic signature is invalid."
            raise Unauthorized(message, error="authentication_failed")
    return Signature(signer.email, values[REASON], clock.now(), "passkey" if by_passkey else None)


def options(reason: str) -> JSONObject:
    """A token and options for signing with a passkey; the signature is for this reason only."""
    token = challenges.issue(Step.SIGNATURE)
    return {"token": token, "options": passkeys.request_options(_bound(token, reason))}


def _accepts_passkey(values: Mapping[str, str], signer: LoginUser) -> bool:
    try:
        sent = orjson.loads(urlsafe_b64decode(values[PASSKEY] + "=="))
        token, assertion = str(sent["token"]), dict(sent["assertion"])
    except (ValueError, TypeError, KeyError):
        return False
    challenge = challenges.read(token, Step.SIGNATURE)
    user = db.db.session.get_one(User, (signer.account_id, signer.id))
    with db.transaction():
        if not passkeys.accept(user, _bound(token, values[REASON]), assertion, alone=True):
            return False
        challenges.use(challenge, user.account_id)
    return True


def _bound(token: str, reason: str) -> str:
    """The text of which the challenge is the digest: the token with the reason."""
    return f"{token}\n{reason}"


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
