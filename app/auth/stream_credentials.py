"""What a stream was opened with, to identify its caller again and again.

It names a token, an API key or a session, and holds no secret.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from app import clock, config
from app.auth import api_keys, tokens
from app.auth import principal as principals
from app.auth.principal import Principal
from app.auth.tokens import Claims
from app.errors import Unauthorized
from app.types import JSONObject

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
    """When it expires, in seconds since the epoch."""

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
