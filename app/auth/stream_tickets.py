"""Tickets that open one stream each: random, hashed, single-use."""

from __future__ import annotations

from datetime import timedelta

import sqlalchemy as sa

from app import clock, db
from app.auth import principal as principals
from app.auth import tokens
from app.auth.models import StreamTicket
from app.auth.stream_credentials import StreamCredential
from app.context import tenancy
from app.errors import TooManyRequests, Unauthorized

LIFETIME = timedelta(seconds=30)
MAX_OPEN = 100  # unused tickets of a user


def issue(credential: StreamCredential) -> str:
    """Create a ticket for a credential. Raises TooManyRequests."""
    home = principals.find_active_account(credential.home_id)
    if home is None:
        raise Unauthorized
    ticket, now = tokens.random_token(home.account_code), clock.now()
    own = (StreamTicket.account_id == home.id, StreamTicket.user_id == credential.user_id)
    row = StreamTicket(
        account_id=home.id,
        token_hash=tokens.digest(ticket),
        user_id=credential.user_id,
        credential=credential.as_json(),
        expires_at=now + LIFETIME,
    )
    # Of its own user even for a superadmin, who acts in another account.
    with tenancy.in_account(home.id), db.transaction() as session:
        session.execute(sa.delete(StreamTicket).where(*own, StreamTicket.expires_at <= now))
        count = session.scalar(sa.select(sa.func.count()).select_from(StreamTicket).where(*own))
        if count and count >= MAX_OPEN:
            raise TooManyRequests(int(LIFETIME.total_seconds()))
        session.add(row)
    return ticket


def consume(ticket: str) -> StreamCredential:
    """Use a ticket up: returns the credential it was issued for. Raises Unauthorized."""
    account = principals.find_active_account(ticket.partition("-")[0])
    row = None
    if account is not None:
        own = (
            StreamTicket.account_id == account.id,
            StreamTicket.token_hash == tokens.digest(ticket),
        )
        # Of concurrent requests with one ticket, one deletes the row.
        used = (
            sa.delete(StreamTicket)
            .where(*own)
            .returning(StreamTicket.__table__.c.credential, StreamTicket.__table__.c.expires_at)
        )
        with tenancy.in_account(account.id), db.transaction() as session:
            row = session.execute(used).first()
    if row is None or row.expires_at <= clock.now():
        raise Unauthorized("The ticket is invalid, used or expired. Create a new one.")
    return StreamCredential(**row.credential)
