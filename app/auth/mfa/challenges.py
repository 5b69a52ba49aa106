"""Signed, short-lived tokens of second-factor steps; each works once.

The challenge of a passkey is the digest of such a token, so nothing is stored before it is used.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from datetime import timedelta
from enum import StrEnum

from itsdangerous import BadSignature
from sqlalchemy.exc import IntegrityError

from app import clock, crypto, db
from app.accounts.models import User
from app.auth import tokens
from app.auth.login_users import LoginUser
from app.auth.mfa.models import UsedToken
from app.errors import Unauthorized
from app.ids import new_id

LIFETIME = timedelta(minutes=5)
LONGEST = 1000


class Step(StrEnum):
    """The step that a token is for; no other one accepts it."""

    SIGN_IN = "mfa sign-in"
    ENROLMENT = "mfa enrolment"
    PASSKEY_SIGN_IN = "passkey sign-in"
    REGISTRATION = "passkey registration"
    REAUTHENTICATION = "reauthentication"
    SIGNATURE = "electronic signature"
    EMAIL_UNDO = "undo of an email change"


@dataclass(frozen=True)
class Challenge:
    """The content of a token: the user, unless a passkey has yet to name one, and its expiry."""

    id: str
    expires_at: str
    account_id: str = ""
    user_id: str = ""
    state: str = ""
    """Digest of the user's password and revocations, whose change voids the token."""
    proof: str = ""
    """The first factor (`Proof`) that preceded this step of a sign-in."""


def issue(step: Step, user: User | LoginUser | None = None, proof: str = "") -> str:
    """A new token."""
    expires_at = clock.iso(clock.now() + LIFETIME)
    owner = (user.account_id, user.id, _state(user), proof) if user else ()
    return crypto.sign(asdict(Challenge(new_id(), expires_at, *owner)), step)


def read(token: str, *steps: Step) -> Challenge:
    """Verify a token of one of these steps. Raises Unauthorized."""
    for step in steps:
        try:
            challenge = Challenge(**crypto.unsign(token[:LONGEST], step))
        except (BadSignature, TypeError):
            continue
        if clock.parse(challenge.expires_at) > clock.now():
            return challenge
    raise _invalid()


def user_of(challenge: Challenge) -> User:
    """The active user of a token, unchanged since. Raises Unauthorized."""
    user = db.db.session.get(User, (challenge.account_id, challenge.user_id))
    if user is None or not user.may_sign_in or _state(user) != challenge.state:
        raise _invalid()
    return user


def use(challenge: Challenge, account_id: str) -> None:
    """Mark a token as used, in the open transaction. Raises Unauthorized if it is already."""
    used = UsedToken(
        account_id=account_id,
        token_hash=tokens.digest(challenge.id),
        expires_at=clock.parse(challenge.expires_at),
    )
    try:
        db.db.session.add(used)
        db.db.session.flush()
    except IntegrityError as error:
        raise _invalid() from error


def void(challenge_id: str, account_id: str) -> None:
    """Let nobody use a challenge any more, in the open transaction."""
    used = UsedToken(
        account_id=account_id,
        token_hash=tokens.digest(challenge_id),
        expires_at=clock.now() + LIFETIME,
    )
    db.db.session.merge(used)


def bytes_of(token: str) -> bytes:
    """The passkey challenge of a token."""
    return hashlib.sha256(token.encode()).digest()


def _state(user: User | LoginUser) -> str:
    text = f"{user.password_hash}\0{user.tokens_valid_from}\0{user.email}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _invalid() -> Unauthorized:
    message = "This step is no longer valid. Sign in again."
    return Unauthorized(message, error="invalid_mfa_token")
