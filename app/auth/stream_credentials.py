"""The credential that a stream was opened with, to identify its caller again and again.

It names a token, an API key or a session, and holds no secret. A ticket stands for it in an
address: random, hashed, single-use.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import timedelta

import sqlalchemy as sa

from app import clock, config, db
from app.auth import api_keys, tokens
from app.auth import principal as principals
from app.auth.models import StreamTicket
from app.auth.principal import Principal
from app.auth.tokens import Claims
from app.context import tenancy
from app.errors import TooManyRequests, Unauthorized
from app.types import JSONObject

TICKET_LIFETIME = timedelta(seconds=30)
MAX_OPEN_TICKETS = 100  # unused ones of a user
NO_LONGER_VALID = "The credential is no longer valid."


@dataclass(frozen=True)
class StreamCredential:
    """A token, an API key or a console session, and the account acted in."""

    home_id: str
    user_id: str
    account_id: str
    """The account acted in."""
    key_id: str | None = None
    session_id: str | None = None
    token_id: str | None = None
    auth_time: float | None = None
    mfa: bool = False
    expires_at: float | None = None
    """The expiry, in seconds since the epoch."""

    def principal(self) -> Principal:
        """Identify the caller anew, from the caches. Raises Unauthorized."""
        if self.expires_at is not None and self.expires_at <= clock.now().timestamp():
            raise Unauthorized("The credential has expired.", error="token_expired")
        caller = self._signed_in()
        if caller.account_id == self.account_id:
            return caller
        account = principals.find_active_account(self.account_id)
        if account is None or not caller.may_act_elsewhere:
            raise Unauthorized(NO_LONGER_VALID)
        return caller.acting_in(account)

    def _signed_in(self) -> Principal:
        if self.key_id is not None:
            return api_keys.authenticate_by_id(self.home_id, self.key_id)
        claims: Claims = {"account_id": self.home_id, "sub": self.user_id, "sid": self.session_id}
        caller = tokens.principal_of(claims | {"auth_time": self.auth_time, "mfa": self.mfa})
        is_revoked = caller and self.token_id is not None and self.token_id < caller.min_token_id
        if caller is None or is_revoked:
            raise Unauthorized(NO_LONGER_VALID)
        return caller

    def as_json(self) -> JSONObject:
        """Return the stored form, for `StreamCredential(**stored)`."""
        return asdict(self)


def of_token(claims: Claims, by: Principal) -> StreamCredential:
    """The credential of an access token."""
    home, user_id = by.home_and_user()
    return StreamCredential(
        home.id,
        user_id,
        by.require_account_id(),
        session_id=claims.get("sid"),
        token_id=claims["jti"],
        auth_time=claims.get("auth_time"),
        mfa=by.mfa,
        expires_at=claims["exp"],
    )


def of_key(by: Principal) -> StreamCredential:
    """The credential of an API key."""
    home, user_id = by.home_and_user()
    account_id, expires_at = by.require_account_id(), by.key_expires_at
    return StreamCredential(
        home.id, user_id, account_id, key_id=by.api_key_id, expires_at=expires_at
    )


def of_session(by: Principal) -> StreamCredential:
    """The credential of a console session; it lasts as long as an access token."""
    home, user_id = by.home_and_user()
    lifetime = config.current().access_token_expire_minutes * 60
    return StreamCredential(
        home.id,
        user_id,
        by.require_account_id(),
        session_id=by.session_id,
        auth_time=by.auth_time,
        mfa=by.mfa,
        expires_at=clock.now().timestamp() + lifetime,
    )


def issue_ticket(credential: StreamCredential) -> str:
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
        expires_at=now + TICKET_LIFETIME,
    )
    # Of its own user even for a superadmin, who acts in another account.
    with tenancy.in_account(home.id), db.transaction() as session:
        session.execute(sa.delete(StreamTicket).where(*own, StreamTicket.expires_at <= now))
        count = session.scalar(sa.select(sa.func.count()).select_from(StreamTicket).where(*own))
        if count and count >= MAX_OPEN_TICKETS:
            raise TooManyRequests(int(TICKET_LIFETIME.total_seconds()))
        session.add(row)
    return ticket


def consume_ticket(ticket: str) -> StreamCredential:
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
