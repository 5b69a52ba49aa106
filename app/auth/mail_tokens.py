"""Tokens of mailed and printed links: random, hashed, single-use.

They expire after an hour; links to sign in after 15 minutes, and tokens that undo an email change
after seven days.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import sqlalchemy as sa

from app import clock, db, events
from app.accounts.models import Account, User
from app.accounts.types import Condition
from app.auth import tokens
from app.auth.models import MailedToken
from app.context import actor
from app.errors import BadRequest

LIFETIME = timedelta(hours=1)
RESET, VERIFICATION, EMAIL_CHANGE = "reset", "verification", "email_change"
EMAIL_UNDO = "email_undo"
EMAIL_KEEP = "email_keep"
"""Stops the undoing of a change that waits."""
SIGN_IN = "sign_in"
"""Of the link that development prints at its start."""
MAGIC_LINK = "magic_link"
LIVE = 3
"""Valid links of a purpose that one source has asked for."""
LIFETIMES = {
    MAGIC_LINK: timedelta(minutes=15),
    EMAIL_UNDO: timedelta(days=7),
    EMAIL_KEEP: timedelta(days=2),
}
"""Where it is not LIFETIME."""
TO_OTHER_ADDRESS = (EMAIL_CHANGE, EMAIL_UNDO)


def issue(
    user: User,
    purpose: str,
    email: str | None = None,
    *,
    redirect_uri: str | None = None,
    source: str | None = None,
    caused_at: datetime | None = None,
) -> str:
    """Create a token; of those that one source asked for, three of a purpose stay valid.

    `source` is a network or known device, of `lockout.count_mail_request`: a stranger's requests
    revoke no link that the user asked for. An email change is the last one requested. Undo tokens
    stay valid: an attacker who changes the address twice must not revoke the first. `caused_at` is
    when that happened which a token undoes. Only mail jobs and `flask setup` call this: the token
    is in the link, only its hash is stored.
    """
    token = tokens.random_token(user.account.account_code)
    with db.transaction() as session:
        if purpose in (EMAIL_CHANGE, SIGN_IN):
            revoke(user, purpose)
        elif purpose != EMAIL_UNDO:
            _make_room(user, purpose, source)
        session.add(
            MailedToken(
                account_id=user.account_id,
                user_id=user.id,
                purpose=purpose,
                email=email or user.email,
                redirect_uri=redirect_uri,
                source=source,
                token_hash=tokens.digest(token),
                expires_at=clock.now() + LIFETIMES.get(purpose, LIFETIME),
                created_at=caused_at or clock.now(),
            )
        )
    return token


def _make_room(user: User, purpose: str, source: str | None) -> None:
    """Revoke tokens of a source so that with a new one, three are valid."""
    session = db.db.session
    own = (
        MailedToken.account_id == user.account_id,
        MailedToken.user_id == user.id,
        MailedToken.purpose == purpose,
        MailedToken.source == source,
    )
    query = sa.select(MailedToken).where(*own, MailedToken.expires_at > clock.now())
    valid = session.scalars(query.order_by(MailedToken.created_at, MailedToken.id)).all()
    # The first one stays, too: a stranger in the user's network may have asked for the others.
    for token in valid[1 : len(valid) - (LIVE - 2)]:
        session.delete(token)


def revoke(user: User, *purposes: str) -> None:
    """Revoke a user's tokens of these purposes."""
    _revoke(user.account_id, user.id, purposes)


@events.subscribe(events.AddressVerified)
def _on_address_proved(event: events.AddressVerified) -> None:
    # A pending email change would return the user to whoever requested it.
    _revoke(event.account_id, event.user_id, (RESET, VERIFICATION, EMAIL_CHANGE, MAGIC_LINK))


def _revoke(account_id: str, user_id: str, purposes: Sequence[str]) -> None:
    conditions = (
        MailedToken.account_id == account_id,
        MailedToken.user_id == user_id,
        MailedToken.purpose.in_(purposes),
    )
    with db.transaction() as session:
        session.execute(sa.delete(MailedToken).where(*conditions))


def revoke_since(first: MailedToken) -> None:
    """Revoke this token and the later ones of its user and purpose."""
    conditions = (
        MailedToken.account_id == first.account_id,
        MailedToken.user_id == first.user_id,
        MailedToken.purpose == first.purpose,
        MailedToken.created_at >= first.created_at,
    )
    with db.transaction() as session:
        session.execute(sa.delete(MailedToken).where(*conditions))


def revoke_waiting(user: User) -> None:
    """Revoke the user's tokens that would undo a change of address in a while."""
    conditions = (
        MailedToken.account_id == user.account_id,
        MailedToken.user_id == user.id,
        MailedToken.due_at.is_not(None),
    )
    with db.transaction() as session:
        session.execute(sa.delete(MailedToken).where(*conditions))


def find(token: str, purpose: str) -> MailedToken | None:
    """The row of a valid token, without consuming it."""
    session = db.db.session
    row = session.scalar(sa.select(MailedToken).where(*_matches(token, purpose)))
    if row is None or row.expires_at <= clock.now():
        return None
    user = session.get(User, (row.account_id, row.user_id))
    return row if user and _is_usable(purpose, user, row.email) else None


def consume(token: str, purpose: str) -> tuple[User, str] | None:
    """Consume a token: returns its user and the address it was mailed to, or None if invalid."""
    table = MailedToken.__table__.c
    with db.transaction() as session:
        row = session.execute(
            sa.delete(MailedToken)
            .where(*_matches(token, purpose))
            .returning(table.account_id, table.user_id, table.email, table.expires_at)
        ).first()
        if row is None or row.expires_at <= clock.now():
            return None
        user = session.get(User, (row.account_id, row.user_id))
    if user is None or not _is_usable(purpose, user, row.email):
        return None
    actor.act_as(user.id, user.email, user.name)
    return user, row.email


def invalid_token() -> BadRequest:
    """The error for a wrong, used or expired token."""
    message = "This link is invalid or has expired. Request a new one."
    return BadRequest(message, error="invalid_token")


def _is_usable(purpose: str, user: User, email: str) -> bool:
    # A token that was mailed to a former address of the user is void.
    return user.may_sign_in and (purpose in TO_OTHER_ADDRESS or email == user.email)


def _matches(token: str, purpose: str) -> tuple[Condition, ...]:
    code, _, _ = token.partition("-")
    account_id = sa.select(Account.id).where(Account.account_code == code).scalar_subquery()
    return (
        MailedToken.account_id == account_id,
        MailedToken.token_hash == tokens.digest(token),
        MailedToken.purpose == purpose,
    )
