"""Tokens of mailed and printed links: random, hashed, single-use.

They expire after an hour; links to sign in after 15 minutes, tokens that undo an email change after
seven days, and those that keep it after two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

import sqlalchemy as sa

from app import clock, db, events
from app.accounts.models import Account, User
from app.accounts.product import links, mails
from app.accounts.product.links import Page
from app.accounts.product.settings import LinkKind
from app.accounts.types import Condition
from app.auth import stranger_mails, tokens
from app.auth.models import LinkPurpose, MailedToken
from app.context import actor
from app.errors import BadRequest

LIFETIME = timedelta(hours=1)
OTHER_LIFETIMES = {
    LinkPurpose.MAGIC_LINK: timedelta(minutes=15),
    LinkPurpose.EMAIL_UNDO: timedelta(days=7),
    LinkPurpose.EMAIL_KEEP: timedelta(days=2),
}
MAX_VALID = 3  # links of one purpose, requested by one source
KEPT_NEWEST = MAX_VALID - 2  # former links that stay besides the first: the new one counts, too
TO_OTHER_ADDRESS = (LinkPurpose.EMAIL_CHANGE, LinkPurpose.EMAIL_UNDO)


@dataclass(frozen=True)
class LinkRequest:
    """The requester of a link, and the client application that it leads to."""

    source: str | None = None
    """A network or known device, of `lockout.count_mail_request`."""
    redirect_uri: str | None = None
    """Its address, if it is one of the account's list."""


@dataclass(frozen=True)
class Consumed:
    """The user and address of a token that is now used up."""

    user: User
    email: str
    """The address it was mailed to."""


def issue(
    user: User,
    purpose: LinkPurpose,
    email: str | None = None,
    *,
    request: LinkRequest | None = None,
    caused_at: datetime | None = None,
) -> str:
    """Create a token, and revoke the former ones that it replaces.

    `caused_at` is the time of the change that the token undoes. Only mail jobs and `atrium setup`
    call this: the token is in the link, only its hash is stored.
    """
    request = request or LinkRequest()
    token = tokens.random_token(user.account.account_code)
    with db.transaction() as session:
        now = clock.now()
        if purpose in (LinkPurpose.EMAIL_CHANGE, LinkPurpose.SIGN_IN):
            # Only the last one requested counts.
            revoke(user, purpose)
        # Undo tokens stay: an attacker who changes the address twice must not revoke the first.
        elif purpose is not LinkPurpose.EMAIL_UNDO:
            # By source: a stranger's requests revoke no link that the user requested.
            query = sa.select(MailedToken).where(
                MailedToken.account_id == user.account_id,
                MailedToken.user_id == user.id,
                MailedToken.purpose == purpose,
                MailedToken.source == request.source,
                MailedToken.expires_at > now,
            )
            valid = session.scalars(query.order_by(MailedToken.created_at, MailedToken.id)).all()
            # The first one stays, too: a stranger in the user's network may have requested the
            # others.
            for former in valid[1:-KEPT_NEWEST]:
                session.delete(former)
        session.add(
            MailedToken(
                account_id=user.account_id,
                user_id=user.id,
                purpose=purpose,
                email=email or user.email,
                redirect_uri=request.redirect_uri,
                source=request.source,
                token_hash=tokens.digest(token),
                expires_at=now + lifetime(purpose),
                created_at=caused_at or now,
            )
        )
    return token


def mail_link(
    user: User,
    kind: LinkKind,
    purpose: LinkPurpose,
    requested: Mapping[str, str | None],
    *,
    page: Page | None = None,
) -> None:
    """Mail a user a link with a new token, to the page of its kind or to another one.

    `requested` is the payload of the job: its `source`, `redirect_uri`, and who it is `caused_by`.
    """
    with db.transaction():
        redirect_uri = requested.get("redirect_uri")
        page = page or links.page(kind, user.account, user.id, redirect_uri)
        request = LinkRequest(requested.get("source"), page.redirect_uri)
        token = issue(user, purpose, request=request)
    by = requested.get("caused_by")
    mails.send(
        kind,
        user.email,
        user.account_id,
        account=user.account.name,
        user=user,
        link=page.address(token),
        expires=clock.now() + lifetime(purpose),
        caused_by=stranger_mails.named(user.account_id, by) if by != user.id else None,
    )


def lifetime(purpose: LinkPurpose) -> timedelta:
    """How long a new link works."""
    return OTHER_LIFETIMES.get(purpose, LIFETIME)


def revoke(user: User, *purposes: LinkPurpose) -> None:
    """Revoke a user's tokens of these purposes."""
    _revoke(user.account_id, user.id, MailedToken.purpose.in_(purposes))


def revoke_since(first: MailedToken) -> None:
    """Revoke this token and the later ones of its user and purpose."""
    _revoke(
        first.account_id,
        first.user_id,
        MailedToken.purpose == first.purpose,
        MailedToken.created_at >= first.created_at,
    )


def cancel_scheduled_undos(user: User) -> None:
    """Revoke the tokens that would undo an email change of the user by themselves (`due_at`)."""
    _revoke(user.account_id, user.id, MailedToken.due_at.is_not(None))


@events.subscribe(events.AddressVerified)
def _on_address_verified(event: events.AddressVerified) -> None:
    # A pending email change would return the user to whoever requested it.
    revoked = (
        LinkPurpose.RESET,
        LinkPurpose.VERIFICATION,
        LinkPurpose.EMAIL_CHANGE,
        LinkPurpose.MAGIC_LINK,
    )
    _revoke(event.account_id, event.user_id, MailedToken.purpose.in_(revoked))


def _revoke(account_id: str, user_id: str, *conditions: Condition) -> None:
    owned = (MailedToken.account_id == account_id, MailedToken.user_id == user_id)
    with db.transaction() as session:
        session.execute(sa.delete(MailedToken).where(*owned, *conditions))


def find(token: str, purpose: LinkPurpose) -> MailedToken | None:
    """The row of a token, which stays usable; None if it is invalid."""
    session = db.db.session
    row = session.scalar(sa.select(MailedToken).where(*_matches(token, purpose)))
    if row is None or row.expires_at <= clock.now():
        return None
    user = session.get(User, (row.account_id, row.user_id))
    return row if user and _is_usable(purpose, user, row.email) else None


def consume(token: str, purpose: LinkPurpose) -> Consumed | None:
    """Consume a token; returns None if it is invalid."""
    table = MailedToken.__table__.c
    with db.transaction() as session:
        row = session.execute(
            sa.delete(MailedToken)
            .where(*_matches(token, purpose))
            .returning(
                table.account_id,
                table.user_id,
                table.email,
                table.redirect_uri,
                table.expires_at,
            )
        ).first()
        if row is None or row.expires_at <= clock.now():
            return None
        user = session.get(User, (row.account_id, row.user_id))
    if user is None or not _is_usable(purpose, user, row.email):
        return None
    # The account and the groups may have changed since the mail was sent.
    if row.redirect_uri and not links.may_receive(user.account, row.redirect_uri, user.id):
        return None
    actor.act_as(user.id, user.email, user.name)
    return Consumed(user, row.email)


def invalid_token() -> BadRequest:
    """The error for a wrong, used or expired token."""
    message = "This link is invalid or has expired. Request a new one."
    return BadRequest(message, error="invalid_token")


def _is_usable(purpose: LinkPurpose, user: User, email: str) -> bool:
    # A token that was mailed to a former address of the user is void.
    return user.may_sign_in and (purpose in TO_OTHER_ADDRESS or email == user.email)


def _matches(token: str, purpose: LinkPurpose) -> tuple[Condition, ...]:
    code, _, _ = token.partition("-")
    account_id = sa.select(Account.id).where(Account.account_code == code).scalar_subquery()
    return (
        MailedToken.account_id == account_id,
        MailedToken.token_hash == tokens.digest(token),
        MailedToken.purpose == purpose,
    )
