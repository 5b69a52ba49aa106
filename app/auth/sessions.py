"""Sessions: begun by signing in, renewed with their refresh tokens, ended (contract section 3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa

from app import clock, config, db, events
from app.accounts.models import User
from app.auth import credentials, tokens
from app.auth.login_users import Member
from app.auth.models import SignInSession
from app.auth.principal import Principal
from app.db.prepared import PreparedStatement
from app.errors import NotFound, Unauthorized
from app.ids import first_id, new_id

LONGEST_AGENT = 400


@dataclass(frozen=True)
class Origin:
    """Where a request comes from, as a session remembers it."""

    ip_address: str | None
    user_agent: str | None


def not_right() -> Unauthorized:
    """What every sign-in is told that is not let in, whatever the reason."""
    message = "Account, user name or password are not right."
    return Unauthorized(message, error="authentication_failed")


@dataclass(frozen=True)
class Family:
    """A session with its newest refresh token."""

    session_id: str
    refresh_token: str
    authenticated_at: datetime


def start(user: User | Member, origin: Origin) -> Family:
    """Begin a token family of a user."""
    now, session_id = clock.now(), new_id()
    token, jti = _refresh_token(user.account_id, user.id, session_id, lifetime())
    _begin(user, session_id, "api", jti, origin, now)
    return Family(session_id, token, now)


def start_in_console(user: User | Member, origin: Origin) -> str:
    """Begin a console session. Returns the secret that its cookie carries."""
    secret = tokens.random_token(user.account.account_code)
    _begin(user, new_id(), "console", secret, origin, clock.now())
    return secret


def rotate(claims: Mapping[str, Any]) -> Family | None:
    """Take the next token of a family; None where that of the claims is not the newest."""
    newest = SignInSession.token_hash == tokens.digest(claims["jti"])
    return _renew(claims["account_id"], claims["sub"], claims["sid"], newest)


def authenticate(caller: Principal) -> None:
    """Note that somebody proved anew to be the caller. Raises Unauthorized for an ended session."""
    mine = (*_of_user(*user_key(caller)), SignInSession.id == caller.session_id, *_alive())
    noted = sa.update(SignInSession).where(*mine).values(authenticated_at=clock.now())
    with db.transaction() as session:
        found: Any = session.execute(noted)
    if not found.rowcount:
        raise Unauthorized


def renew(caller: Principal) -> Family:
    """Take the next token of the caller's family. Raises Unauthorized for an ended session."""
    family = _renew(*user_key(caller), caller.session_id or "")
    if family is None:
        raise Unauthorized
    return family


def _renew(account_id: str, user_id: str, session_id: str, *which: Any) -> Family | None:
    mine = (*_family_of(account_id, user_id, session_id), *which, *_alive())
    begun = sa.select(SignInSession.created_at, SignInSession.authenticated_at).where(*mine)
    now = clock.now()
    with db.transaction() as session:
        found = session.execute(begun).first()
        if found is None:
            return None
        end = min(now + lifetime(), found.created_at + _longest())
        token, jti = _refresh_token(account_id, user_id, session_id, end - now)
        values = {"token_hash": tokens.digest(jti), "last_used_at": now, "expires_at": end}
        renewed: Any = session.execute(sa.update(SignInSession).where(*mine).values(**values))
    if not renewed.rowcount:
        return None
    return Family(session_id, token, found.authenticated_at or found.created_at)


def _refresh_token(
    account_id: str, user_id: str, session_id: str, lifetime: timedelta
) -> tuple[str, str]:
    return tokens.refresh(
        user_id=user_id, account_id=account_id, session_id=session_id, lifetime=lifetime
    )


def of_caller(caller: Principal, skip: int, limit: int) -> tuple[list[SignInSession], int]:
    """The caller's sessions that are alive, the last used first, and how many there are."""
    mine = [*_of_user(*user_key(caller)), *_alive()]
    counted = sa.select(sa.func.count()).select_from(SignInSession).where(*mine)
    chosen = sa.select(SignInSession).where(*mine)
    chosen = chosen.order_by(SignInSession.last_used_at.desc(), SignInSession.id)
    found = db.db.session.scalars(chosen.offset(skip).limit(limit))
    return list(found), db.db.session.scalar(counted) or 0


def end(account_id: str, user_id: str, session_id: str) -> bool:
    """End one session, and its access tokens. Returns whether it was not ended before."""
    return _revoke(account_id, user_id, SignInSession.id == session_id)


def end_own(caller: Principal, session_id: str) -> None:
    """End one of the caller's sessions. Raises NotFound."""
    mine = (*_of_user(*user_key(caller)), SignInSession.id == session_id.lower())
    with db.transaction() as session:
        if session.scalar(sa.select(SignInSession.id).where(*mine, *_alive())) is None:
            raise NotFound("There is no such session.")
        _revoke(*user_key(caller), *mine)


def end_all(account_id: str, user_id: str) -> None:
    """End every session of a user, console sessions included, and their access tokens."""
    _revoke(account_id, user_id)


def end_family(claims: Mapping[str, Any]) -> None:
    """End the session that a refresh token grew from, and its access tokens."""
    _revoke(*_user_of(claims), *_family(claims))


def end_reused(claims: Mapping[str, Any]) -> bool:
    """The same for a token that was used before. Returns whether the session was alive."""
    return _revoke(*_user_of(claims), *_family(claims), *_alive())


def hold(caller: Principal) -> None:
    """Have whoever ends the caller's tokens wait for the open transaction. Raises Unauthorized.

    For what outlives them: an API key, say, must not be made when its maker was just found out.
    """
    home, user_id = user_key(caller)
    begin = sa.select(User.tokens_valid_from).where(User.account_id == home, User.id == user_id)
    begun = db.db.session.scalar(begin.with_for_update(key_share=True))
    if begun is not None and caller.first_token != first_id(begun):
        raise Unauthorized
    if caller.session_id and not credentials.lasts(home, user_id, caller.session_id):
        raise Unauthorized


def user_key(caller: Principal) -> tuple[str, str]:
    """The account and the id of the user who calls."""
    return caller.home.id if caller.home else "", caller.user_id or ""


@events.subscribe(events.UserLostAccess)
def _end_sessions_of(event: events.UserLostAccess) -> None:
    end_all(event.account_id, event.user_id)


@events.subscribe(events.RoleChanged)
def _let_sessions_run_out(event: events.RoleChanged) -> None:
    # Nobody renews them; access tokens of theirs stay, with the role that the user has now.
    mine = (*_of_user(event.account_id, event.user_id), *_alive())
    with db.transaction() as session:
        session.execute(sa.update(SignInSession).where(*mine).values(expires_at=clock.now()))


@events.subscribe(events.AddressVerified)
def _end_tokens_of(event: events.AddressVerified) -> None:
    end_all(event.account_id, event.user_id)
    # Afterwards: who renewed a token meanwhile was waited for.
    user = db.db.session.get_one(User, (event.account_id, event.user_id))
    user.tokens_valid_from = clock.now()


def _begin(
    user: User | Member, id: str, kind: str, secret: str, origin: Origin, now: datetime
) -> None:
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
        "expires_at": now + lifetime(),
    }
    seen = {"_account": user.account_id, "_id": user.id, "_hash": user.password_hash, "_now": now}
    seen["_from"] = user.tokens_valid_from
    with db.transaction():
        # Whoever changed the user meanwhile ended the sessions that there were.
        if not _NOTE_LOGIN.all(seen):
            raise not_right()
        _NEW_SESSION.run({f"_{name}": value for name, value in begun.items()})
    if isinstance(user, Member):
        user.last_login = now


def lifetime() -> timedelta:
    """How long a session lasts that is not renewed."""
    return min(timedelta(days=config.current().refresh_token_expire_days), _longest())


def _longest() -> timedelta:
    return timedelta(days=config.current().session_max_days)


def _of_user(account_id: str, user_id: str) -> tuple[Any, ...]:
    return (SignInSession.account_id == account_id, SignInSession.user_id == user_id)


def _user_of(claims: Mapping[str, Any]) -> tuple[str, str]:
    return claims["account_id"], claims["sub"]


def _family(claims: Mapping[str, Any]) -> tuple[Any, ...]:
    return _family_of(*_user_of(claims), claims["sid"])


def _family_of(account_id: str, user_id: str, session_id: str) -> tuple[Any, ...]:
    mine = _of_user(account_id, user_id)
    return (*mine, SignInSession.id == session_id, SignInSession.kind == "api")


def _alive() -> tuple[Any, ...]:
    now = clock.now()
    # The bound may have been lowered since it was renewed.
    begun = SignInSession.created_at > now - _longest()
    return (SignInSession.revoked_at.is_(None), SignInSession.expires_at > now, begun)


def _revoke(account_id: str, user_id: str, *which: Any) -> bool:
    """Whether there was a session to end."""
    alive = (*_of_user(account_id, user_id), *which, SignInSession.revoked_at.is_(None))
    ended = sa.update(SignInSession).where(*alive).values(revoked_at=clock.now())
    mine = sa.update(User).where(User.account_id == account_id, User.id == user_id)
    outdated = mine.values(version=User.version + 1, updated_at=User.updated_at)
    with db.transaction() as session:
        # The user first, as whoever changes one does: none waits for the other in a circle.
        session.execute(outdated)
        revoked: Any = session.execute(ended)
    return bool(revoked.rowcount)


_USERS, _SESSIONS = (db.Base.metadata.tables[name] for name in ("users", "sessions"))
_NULL_AT_FIRST = ("revoked_at", "authenticated_at")
_NEW_SESSION = PreparedStatement(
    sa.insert(_SESSIONS).values(
        {c: sa.bindparam(f"_{c.name}") for c in _SESSIONS.c if c.name not in _NULL_AT_FIRST}
    ),
    keyed=True,
)
_NOTE_LOGIN = PreparedStatement(
    sa.update(_USERS)
    .where(_USERS.c.account_id == sa.bindparam("_account"), _USERS.c.id == sa.bindparam("_id"))
    .where(_USERS.c.password_hash.is_not_distinct_from(sa.bindparam("_hash")), _USERS.c.is_active)
    .where(_USERS.c.tokens_valid_from.is_not_distinct_from(sa.bindparam("_from")))
    .values(last_login=sa.bindparam("_now"), updated_at=_USERS.c.updated_at)
    .returning(_USERS.c.id),
    keyed=True,
)
