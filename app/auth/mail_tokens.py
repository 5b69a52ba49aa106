"""Tokens of mailed links: random, hashed, single-use (spec 5.10, contract section 3).

They last an hour; those that take a changed address back last seven days (contract section 18).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import sqlalchemy as sa

from app import clock, db, events
from app.accounts.models import Account, User
from app.auth import tokens
from app.auth.models import MailedToken
from app.context import actor
from app.errors import BadRequest

LIFETIME = timedelta(hours=1)
UNDO_LIFETIME = timedelta(days=7)
RESET, VERIFICATION, EMAIL_CHANGE = "reset", "verification", "email_change"
EMAIL_UNDO = "email_undo"
TO_OTHER_ADDRESS = (EMAIL_CHANGE, EMAIL_UNDO)


def issue(user: User, purpose: str, email: str | None = None) -> str:
    """A new token for a user, which ends the older ones of its purpose.

    But of those that take an address back: whoever changes it twice must not end the first.
    Only jobs that send mail call this: the token is in the mail and stored nowhere.
    """
    token = tokens.random_token(user.account.account_code)
    with db.transaction() as session:
        if purpose != EMAIL_UNDO:
            end(user, purpose)
        session.add(
            MailedToken(
                account_id=user.account_id,
                user_id=user.id,
                purpose=purpose,
                email=email or user.email,
                token_hash=tokens.digest(token),
                expires_at=clock.now() + (UNDO_LIFETIME if purpose == EMAIL_UNDO else LIFETIME),
            )
        )
    return token


def end(user: User, *purposes: str) -> None:
    """Make a user's links of some purposes void."""
    _end(user.account_id, user.id, purposes)


@events.subscribe(events.AddressVerified)
def _end_of_who_came_first(event: events.AddressVerified) -> None:
    # A change of the address that is waiting would hand the user back to whoever asked for it.
    _end(event.account_id, event.user_id, (RESET, VERIFICATION, EMAIL_CHANGE))


def _end(account_id: str, user_id: str, purposes: Sequence[str]) -> None:
    mine = (
        MailedToken.account_id == account_id,
        MailedToken.user_id == user_id,
        MailedToken.purpose.in_(purposes),
    )
    with db.transaction() as session:
        session.execute(sa.delete(MailedToken).where(*mine))


def end_since(first: MailedToken) -> None:
    """Make this token void, and those of its user and purpose that were issued later."""
    mine = (
        MailedToken.account_id == first.account_id,
        MailedToken.user_id == first.user_id,
        MailedToken.purpose == first.purpose,
        MailedToken.created_at >= first.created_at,
    )
    with db.transaction() as session:
        session.execute(sa.delete(MailedToken).where(*mine))


def find(token: str, purpose: str) -> MailedToken | None:
    """The valid token behind a text, without using it up."""
    session = db.db.session
    found = session.scalar(sa.select(MailedToken).where(*_named(token, purpose)))
    if found is None or found.expires_at <= clock.now():
        return None
    user = session.get(User, (found.account_id, found.user_id))
    return found if user and _opens(purpose, user, found.email) else None


def use(token: str, purpose: str) -> tuple[User, str] | None:
    """Use a token up: its user, and the address that it was mailed to; None if it is not valid."""
    table = MailedToken.__table__.c
    with db.transaction() as session:
        used = session.execute(
            sa.delete(MailedToken)
            .where(*_named(token, purpose))
            .returning(table.account_id, table.user_id, table.email, table.expires_at)
        ).first()
        if used is None or used.expires_at <= clock.now():
            return None
        user = session.get(User, (used.account_id, used.user_id))
    if user is None or not _opens(purpose, user, used.email):
        return None
    actor.act_as(user.id, user.email, user.name)
    return user, used.email


def not_valid() -> BadRequest:
    """The answer to a token that is bad, used or too old."""
    message = "This link is not valid any more. Ask for a new one."
    return BadRequest(message, error="invalid_token")


def _opens(purpose: str, user: User, email: str) -> bool:
    # One mailed to an address that the user has left must not open the door.
    return user.may_sign_in and (purpose in TO_OTHER_ADDRESS or email == user.email)


def _named(token: str, purpose: str) -> tuple[sa.ColumnElement[bool], ...]:
    code, _, _ = token.partition("-")
    mine = sa.select(Account.id).where(Account.account_code == code).scalar_subquery()
    return (
        MailedToken.account_id == mine,
        MailedToken.token_hash == tokens.digest(token),
        MailedToken.purpose == purpose,
    )
