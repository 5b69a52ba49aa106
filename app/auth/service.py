"""Signing in and out, by tokens and in the console (contract section 3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import sqlalchemy as sa
import structlog

from app import clock, config, db, events, tenancy
from app.accounts import service as accounts
from app.accounts.models import Account, User
from app.auth import lockout, members, passwords, tokens
from app.auth import principal as principals
from app.auth.members import Member
from app.auth.models import SignInSession
from app.auth.principal import Principal
from app.errors import Forbidden, InvalidValues, NotFound, Unauthorized, problem
from app.statements import Prepared

log = structlog.get_logger()
VERIFICATION_LIFETIME = timedelta(hours=1)
LONGEST_AGENT = 400


@dataclass(frozen=True)
class Origin:
    """Where a request comes from, as a session remembers it."""

    ip_address: str | None
    user_agent: str | None


@dataclass(frozen=True)
class SignIn:
    """A user with a fresh pair of tokens."""

    user: User | Member
    access_token: str
    refresh_token: str


def login(*, account: str | None, email: str, password: str, origin: Origin) -> SignIn:
    """Sign in by password. Raises Unauthorized, alike in answer and time for every failure."""
    return sign_in(check_password(account, email, password, origin), origin)


def sign_in(user: User | Member, origin: Origin) -> SignIn:
    """Begin a session of a user who proved to be that user."""
    refresh_token = start_session(user, origin)
    return SignIn(user, _access_token(user), refresh_token)


def check_password(account: str | None, email: str, password: str, origin: Origin) -> Member:
    """The active, verified user with this password.

    Raises Unauthorized, InvalidValues, or TooManyRequests after too many failures.
    """
    account = require_account(account)
    account_id, user = members.find(account, email)
    # The account's slug, code and id are one, and must not give three times the tries.
    with lockout.guesses(account_id or account, email, origin.ip_address):
        return _checked(user, password)


def _checked(user: Member | None, password: str) -> Member:
    fits = passwords.verify(password, user.password_hash if user else None)
    if user is None or not fits or not user.may_sign_in:
        raise _not_right()
    if not user.email_verified:
        raise Unauthorized(
            "Verify your email address first: please check your inbox.", error="email_not_verified"
        )
    return user


def _not_right() -> Unauthorized:
    message = "Account, user name or password are not right."
    return Unauthorized(message, error="authentication_failed")


def start_session(user: User | Member, origin: Origin) -> str:
    """Begin a token family of a user. Returns its first refresh token."""
    session_id = db.new_id()
    token, jti = tokens.refresh(user_id=user.id, account_id=user.account_id, session_id=session_id)
    _begin(user, session_id, "api", jti, origin)
    return token


def start_console_session(user: User | Member, origin: Origin) -> str:
    """Begin a console session. Returns the secret that its cookie carries."""
    secret = tokens.random_token(user.account.account_code)
    _begin(user, db.new_id(), "console", secret, origin)
    return secret


def console_caller(secret: str) -> tuple[Principal, str] | None:
    """The principal and session id of a console cookie, if the session is still alive."""
    account = principals.account_named(secret.partition("-")[0])
    if account is None:
        return None
    asked = {"_account": account.id, "_hash": tokens.digest(secret), "_now": clock.now()}
    with tenancy.in_account(account.id):
        found = _CONSOLE_SESSION.all(asked)
        caller = principals.of_user_now(account.id, found[0][1]) if found else None
    return (caller, found[0][0]) if caller else None


def refresh(token: str) -> SignIn:
    """Trade a refresh token for a new pair. A token used before ends its whole family."""
    claims = tokens.read(token, tokens.REFRESH)
    mine = _family(claims)
    new_token, jti = tokens.refresh(
        user_id=claims["sub"], account_id=claims["account_id"], session_id=claims["sid"]
    )
    lifetime = timedelta(days=config.current().refresh_token_expire_days)
    now = clock.now()
    with db.transaction() as session:
        current = (SignInSession.token_hash == tokens.digest(claims["jti"]), *_alive())
        values = {
            "token_hash": tokens.digest(jti),
            "last_used_at": now,
            "expires_at": now + lifetime,
        }
        rotated: Any = session.execute(
            sa.update(SignInSession).where(*mine, *current).values(**values)
        )
        if rotated.rowcount == 1:
            user = session.get(User, (claims["account_id"], claims["sub"]))
            if user and user.may_sign_in:
                return SignIn(user, _access_token(user), new_token)
        if _revoke(session, *mine) and rotated.rowcount == 0:
            reused = events.RefreshTokenReused(claims["account_id"], claims["sid"], now)
            events.publish(reused)
            log.warning("refresh token used again", account=reused.account_id, user=claims["sub"])
    raise Unauthorized("The refresh token is not valid any more.")


def logout(caller: Principal, refresh_token: str | None, *, cookie: str) -> None:
    """End the session of a refresh token; without one, all sessions of the caller."""
    claims: dict[str, Any] | None
    if refresh_token:
        claims = tokens.read(refresh_token, tokens.REFRESH)
        if claims["sub"] != caller.user_id:
            raise Forbidden("The refresh token belongs to somebody else.")
    else:
        claims = _claims_of_own(caller, cookie)
    with db.transaction() as session:
        if claims:
            _revoke(session, *_family(claims))
        else:
            end_sessions(caller.home.id if caller.home else "", caller.user_id or "")


def _claims_of_own(caller: Principal, cookie: str) -> dict[str, Any] | None:
    # Nobody chose to send the cookie: one from another time or user must keep nobody signed in.
    try:
        claims = tokens.read(cookie, tokens.REFRESH)
    except Unauthorized:
        return None
    return claims if claims["sub"] == caller.user_id else None


def end_sessions(account_id: str, user_id: str) -> None:
    """End every session of a user, console sessions included."""
    with db.transaction() as session:
        mine = (SignInSession.account_id == account_id, SignInSession.user_id == user_id)
        _revoke(session, *mine)


def end_session(account_id: str, session_id: str) -> None:
    """End one session."""
    with db.transaction() as session:
        mine = (SignInSession.account_id == account_id, SignInSession.id == session_id)
        _revoke(session, *mine)


def sessions(caller: Principal, skip: int, limit: int) -> tuple[list[SignInSession], int]:
    """The caller's sessions that are alive, the last used first, and how many there are."""
    mine = [*_of_caller(caller), *_alive()]
    counted = sa.select(sa.func.count()).select_from(SignInSession).where(*mine)
    chosen = sa.select(SignInSession).where(*mine)
    chosen = chosen.order_by(SignInSession.last_used_at.desc(), SignInSession.id)
    found = db.db.session.scalars(chosen.offset(skip).limit(limit))
    return list(found), db.db.session.scalar(counted) or 0


def end_own_session(caller: Principal, session_id: str) -> None:
    """End one of the caller's sessions. Raises NotFound."""
    mine = (*_of_caller(caller), SignInSession.id == session_id.lower())
    with db.transaction() as session:
        if session.scalar(sa.select(SignInSession.id).where(*mine, *_alive())) is None:
            raise NotFound("There is no such session.")
        _revoke(session, *mine)


def _of_caller(caller: Principal) -> tuple[Any, ...]:
    home_id = caller.home.id if caller.home else ""
    return (SignInSession.account_id == home_id, SignInSession.user_id == caller.user_id)


@events.subscribe(events.UserLostAccess)
def _end_sessions_of(event: events.UserLostAccess) -> None:
    end_sessions(event.account_id, event.user_id)


@events.subscribe(events.AddressProved)
def _end_tokens_of(event: events.AddressProved) -> None:
    end_sessions(event.account_id, event.user_id)
    # Afterwards: who renewed a token meanwhile was waited for.
    user = db.db.session.get_one(User, (event.account_id, event.user_id))
    user.tokens_valid_from = clock.now()


def user_of(caller: Principal) -> User:
    """The row of the signed-in caller."""
    key = (caller.home.id if caller.home else "", caller.user_id or "")
    return db.db.session.get_one(User, key)


_USER_NAMED = sa.select(User).where(
    User.account_id == sa.select(Account.id).where(principals.IS_NAMED).scalar_subquery(),
    User.email_key == sa.bindparam("email_key"),
)


def user_named(account: str, email: str) -> User | None:
    """The user of that account (slug, code or id) with that address."""
    given = {**principals.naming(account), "email_key": accounts.email_key(email)}
    return db.db.session.scalar(_USER_NAMED, given)


def require_account(account: str | None) -> str:
    """The account that must be named, where there is more than one. Raises InvalidValues."""
    settings = config.current()
    if not account and settings.single_tenant:
        return settings.single_tenant_account
    if not account:
        message = "Name the account: its slug, code or id."
        raise InvalidValues([problem("account", "required", message)])
    return account


def _begin(user: User | Member, id: str, kind: str, secret: str, origin: Origin) -> None:
    now = clock.now()
    begun = {
        "account_id": user.account_id,
        "id": id,
        "user_id": user.id,
        "kind": kind,
        "token_hash": tokens.digest(secret),
        "ip_address": origin.ip_address,
        "user_agent": (origin.user_agent or "")[:LONGEST_AGENT] or None,
        "created_at": now,
        "last_used_at": now,
        "expires_at": now + timedelta(days=config.current().refresh_token_expire_days),
    }
    seen = {"_account": user.account_id, "_id": user.id, "_hash": user.password_hash, "_now": now}
    with db.transaction():
        # Whoever changed the user meanwhile ended the sessions that there were.
        if not _NOTE_LOGIN.all(seen):
            raise _not_right()
        _NEW_SESSION.run({f"_{name}": value for name, value in begun.items()})
    if isinstance(user, Member):
        user.last_login = now


_USERS, _SESSIONS = (db.Base.metadata.tables[name] for name in ("users", "sessions"))
_NEW_SESSION = Prepared(
    sa.insert(_SESSIONS).values(
        {c: sa.bindparam(f"_{c.name}") for c in _SESSIONS.c if c.name != "revoked_at"}
    ),
    keyed=True,
)
_CONSOLE_SESSION = Prepared(
    sa.select(_SESSIONS.c.id, _SESSIONS.c.user_id)
    .where(_SESSIONS.c.account_id == sa.bindparam("_account"))
    .where(_SESSIONS.c.kind == sa.literal_column("'console'"))
    .where(_SESSIONS.c.token_hash == sa.bindparam("_hash"), _SESSIONS.c.revoked_at.is_(None))
    .where(_SESSIONS.c.expires_at > sa.bindparam("_now")),
    keyed=True,
)
_NOTE_LOGIN = Prepared(
    sa.update(_USERS)
    .where(_USERS.c.account_id == sa.bindparam("_account"), _USERS.c.id == sa.bindparam("_id"))
    .where(_USERS.c.password_hash.is_not_distinct_from(sa.bindparam("_hash")), _USERS.c.is_active)
    .values(last_login=sa.bindparam("_now"), updated_at=_USERS.c.updated_at)
    .returning(_USERS.c.id),
    keyed=True,
)


def _access_token(user: User | Member) -> str:
    return tokens.access(
        user_id=user.id, account_id=user.account_id, email=user.email, role=user.role.name
    )


def _family(claims: Mapping[str, Any]) -> tuple[Any, ...]:
    return (
        SignInSession.account_id == claims["account_id"],
        SignInSession.id == claims["sid"],
        SignInSession.user_id == claims["sub"],
        SignInSession.kind == "api",
    )


def _alive() -> tuple[Any, ...]:
    return (SignInSession.revoked_at.is_(None), SignInSession.expires_at > clock.now())


def _revoke(session: Any, *which: Any) -> bool:
    """Whether there was a session to end."""
    alive = SignInSession.revoked_at.is_(None)
    ended = sa.update(SignInSession).where(*which, alive).values(revoked_at=clock.now())
    return bool(session.execute(ended).rowcount)
