"""Sessions: started by signing in, renewed with refresh tokens, ended.

How long they last, an account's settings say: `SessionLimits` of app/accounts/sign_in_settings.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from app import clock, db, events
from app.accounts import sign_in_settings
from app.accounts.models import Account, User
from app.accounts.sign_in_settings import SERVICE_LIMITS, SessionLimits
from app.accounts.types import Condition
from app.auth import devices, tokens
from app.auth.devices import MAX_AGENT_LENGTH, Origin
from app.auth.login_users import LoginUser
from app.auth.mfa import gate
from app.auth.mfa.challenges import Challenge
from app.auth.mfa.gate import Proof
from app.auth.models import SessionKind, SetupLink, SignInSession
from app.auth.principal import Principal
from app.auth.tokens import Claims
from app.db import counts
from app.db.prepared import PreparedStatement
from app.errors import NotFound, Unauthorized
from app.ids import first_id, new_id


def authentication_failed() -> Unauthorized:
    """The error of every failed sign-in, whatever the reason."""
    message = "Wrong account, user name or password."
    return Unauthorized(message, error="authentication_failed")


@dataclass(frozen=True)
class Family:
    """A session's token family, with its newest refresh token."""

    session_id: str
    refresh_token: str
    authenticated_at: datetime
    mfa: bool
    expires_at: datetime
    """The end of the session unless it is renewed; its access tokens last no longer."""


@dataclass(frozen=True)
class _NewSession:
    id: str
    kind: SessionKind
    secret: str
    created_at: datetime
    expires_at: datetime
    mfa: bool


def start(
    user: User | LoginUser, origin: Origin, proof: Proof, passed: Challenge | None = None
) -> Family:
    """Start an API session for a user. Raises as `gate.check`.

    After a second factor, it has the id of the challenge, by which single logout may know it.
    """
    mfa = gate.check(user, proof, passed)
    now, session_id = clock.now(), passed.id if passed else new_id()
    expires_at = now + sign_in_settings.session_limits(user.account.settings).lifetime
    token, jti = tokens.refresh(
        user_id=user.id,
        account_id=user.account_id,
        session_id=session_id,
        lifetime=expires_at - now,
    )
    _insert(user, origin, _NewSession(session_id, SessionKind.API, jti, now, expires_at, mfa))
    return Family(session_id, token, now, mfa, expires_at)


def start_in_console(
    user: User | LoginUser, origin: Origin, proof: Proof, passed: Challenge | None = None
) -> str:
    """Start a console session, as `start` does. Returns the secret for its cookie."""
    mfa, now = gate.check(user, proof, passed), clock.now()
    session_id = passed.id if passed else new_id()
    secret = tokens.random_token(user.account.account_code)
    # Use moves the end that the account sets, but not the service's.
    total = sign_in_settings.session_limits(user.account.settings).total
    expires_at = now + min(SERVICE_LIMITS.lifetime, total)
    new = _NewSession(session_id, SessionKind.CONSOLE, secret, now, expires_at, mfa)
    _insert(user, origin, new)
    return secret


def rotate(claims: Claims) -> Family | None:
    """Issue the next token of a family; None if the token of the claims is not the newest."""
    newest = SignInSession.token_hash == tokens.digest(claims["jti"])
    return _renew(claims["account_id"], claims["sub"], claims["sid"], newest)


def authenticate(caller: Principal, *, mfa: bool) -> None:
    """Record a reauthentication of the caller. Raises Unauthorized for an ended session.

    `mfa` marks a session that has now passed a second factor.
    """
    conditions = (
        *_by_user(*user_key(caller)),
        SignInSession.id == caller.session_id,
        *_is_active(),
    )
    values = {"authenticated_at": clock.now(), **({"mfa": True} if mfa else {})}
    statement = sa.update(SignInSession).where(*conditions).values(**values)
    with db.transaction() as session:
        result: Any = session.execute(statement)
    if not result.rowcount:
        raise Unauthorized


def renew(caller: Principal) -> Family:
    """Issue the next token of the caller's session. Raises Unauthorized for an ended session."""
    family = _renew(*user_key(caller), caller.session_id or "")
    if family is None:
        raise Unauthorized
    return family


def _renew(account_id: str, user_id: str, session_id: str, *conditions: Condition) -> Family | None:
    where = (*_by_family(account_id, user_id, session_id), *conditions, *_is_active())
    names = ("created_at", "last_used_at", "authenticated_at", "mfa")
    query = sa.select(*(getattr(SignInSession, name) for name in names), Account.settings)
    query = query.join(Account, Account.id == SignInSession.account_id).where(*where)
    now = clock.now()
    with db.transaction() as session:
        row = session.execute(query).first()
        limits = sign_in_settings.session_limits(row.settings) if row else SERVICE_LIMITS
        if row is None or limits.ends_at(row.created_at, row.last_used_at) <= now:
            return None
        expires_at = limits.ends_at(row.created_at, now)
        token, jti = tokens.refresh(
            user_id=user_id,
            account_id=account_id,
            session_id=session_id,
            lifetime=expires_at - now,
        )
        values = {"token_hash": tokens.digest(jti), "last_used_at": now, "expires_at": expires_at}
        result: Any = session.execute(sa.update(SignInSession).where(*where).values(**values))
    if not result.rowcount:
        return None
    authenticated_at = row.authenticated_at or row.created_at
    return Family(session_id, token, authenticated_at, row.mfa, expires_at)


def page(
    account_id: str, user_id: str, skip: int, limit: int, *, max_total: int | None = None
) -> tuple[list[SignInSession], int]:
    """One page of a user's active sessions, the last used first, and the total up to a limit."""
    settings = db.db.session.get_one(Account, account_id).settings
    limits = sign_in_settings.session_limits(settings)
    conditions = [*_by_user(account_id, user_id), *_is_active(limits)]
    query = sa.select(SignInSession).where(*conditions)
    query = query.order_by(SignInSession.last_used_at.desc(), SignInSession.id)
    rows = db.db.session.scalars(query.offset(skip).limit(limit))
    return list(rows), counts.count_up_to(SignInSession, conditions, max_total)


def end(account_id: str, user_id: str, session_id: str) -> bool:
    """End a session and its access tokens. Returns whether it was active."""
    return revoke(account_id, user_id, SignInSession.id == session_id)


def end_active(account_id: str, user_id: str, session_id: str) -> None:
    """End an active session of a user. Raises NotFound."""
    conditions = (*_by_user(account_id, user_id), SignInSession.id == session_id.lower())
    with db.transaction() as session:
        if session.scalar(sa.select(SignInSession.id).where(*conditions, *_is_active())) is None:
            raise NotFound("There is no such session.")
        revoke(account_id, user_id, *conditions)


def end_others(caller: Principal) -> None:
    """End the caller's other sessions, console included, and their access tokens."""
    revoke(*user_key(caller), SignInSession.id != (caller.session_id or ""))


def end_all(account_id: str, user_id: str) -> None:
    """End all sessions of a user, all access tokens, and the portals that the user opened."""
    user = sa.update(User).where(User.account_id == account_id, User.id == user_id)
    with db.transaction() as session:
        revoke(account_id, user_id)
        # Last: the row locks have ended concurrent renewals.
        ended = user.values(tokens_valid_from=clock.now(), updated_at=User.updated_at)
        session.execute(ended)


def end_family(claims: Claims) -> None:
    """End the session of a refresh token and its access tokens."""
    _revoke_family(claims)


def end_reused(claims: Claims) -> bool:
    """End the session of a reused refresh token. Returns whether it was active."""
    return _revoke_family(claims, *_is_active())


def lock_user(caller: Principal) -> None:
    """Lock the caller's user row, so that the caller's tokens stay valid until the commit.

    For what outlives the tokens, such as API keys. Raises Unauthorized for revoked tokens.
    """
    if caller.setup is not None:
        lock_setup_link(caller)
        return
    account_id, user_id = user_key(caller)
    query = sa.select(User.tokens_valid_from).where(
        User.account_id == account_id, User.id == user_id
    )
    valid_from = db.db.session.scalar(query.with_for_update(key_share=True))
    if valid_from is not None and caller.min_token_id != first_id(valid_from):
        raise Unauthorized
    if caller.session_id and not tokens.session_end(
        account_id, user_id, caller.session_id, caller.session_limits
    ):
        raise Unauthorized


def lock_setup_link(holder: Principal) -> SetupLink:
    """The holder's link, locked so that it stays valid until the commit. Raises Unauthorized."""
    account, link_id = holder.home_and_user()
    own = (SetupLink.account_id == account.id, SetupLink.id == link_id)
    query = sa.select(SetupLink).where(*own).with_for_update()
    link = db.db.session.scalar(query.execution_options(populate_existing=True))
    if link is None or link.state not in ("pending", "opened"):
        raise Unauthorized
    return link


def user_key(caller: Principal) -> tuple[str, str]:
    """The primary key of the caller's user row."""
    return caller.home.id if caller.home else "", caller.user_id or ""


@events.subscribe(events.UserLostAccess)
def _on_lost_access(event: events.UserLostAccess) -> None:
    end_all(event.account_id, event.user_id)


@events.subscribe(events.FirstFactorAdded)
def _on_first_factor(event: events.FirstFactorAdded) -> None:
    revoke(event.account_id, event.user_id, SignInSession.id != (event.session_id or ""))


@events.subscribe(events.RoleChanged)
def _on_role_changed(event: events.RoleChanged) -> None:
    _expire(*_by_user(event.account_id, event.user_id))


@events.subscribe(events.RolesChanged)
def _on_roles_changed(event: events.RolesChanged) -> None:
    _expire(SignInSession.account_id == event.account_id, SignInSession.user_id.in_(event.user_ids))


def _expire(*conditions: Condition) -> None:
    # Refresh tokens stop working; access tokens stay valid, with the user's new role.
    expired = sa.update(SignInSession).where(*conditions, *_is_active())
    with db.transaction() as session:
        session.execute(expired.values(expires_at=clock.now()))


@events.subscribe(events.AddressVerified)
def _on_address_proved(event: events.AddressVerified) -> None:
    end_all(event.account_id, event.user_id)


def _insert(user: User | LoginUser, origin: Origin, new: _NewSession) -> None:
    values = {
        "_account_id": user.account_id,
        "_id": new.id,
        "_user_id": user.id,
        "_kind": new.kind,
        "_token_hash": tokens.digest(new.secret),
        "_ip_address": origin.ip_address,
        "_user_agent": (origin.user_agent or "")[:MAX_AGENT_LENGTH] or None,
        "_created_at": new.created_at,
        "_last_used_at": new.created_at,
        "_expires_at": new.expires_at,
        "_mfa": new.mfa,
    }
    unchanged = {
        "_account": user.account_id,
        "_id": user.id,
        "_hash": user.password_hash,
        "_from": user.tokens_valid_from,
        "_now": new.created_at,
    }
    needs_mail = devices.needs_mail(user, origin)
    with db.transaction():
        # No session is created if the password or access changed during sign-in.
        if not _NOTE_LOGIN.all(unchanged):
            raise authentication_failed()
        _NEW_SESSION.run(values)
        if new.mfa:
            events.publish(events.MfaSessionStarted(user.account_id, new.id))
        if needs_mail:
            devices.enqueue_mail(user, origin, new.created_at)
        who = (user.account_id, user.id, user.email, user.name)
        events.publish(events.SignedIn(*who, session_id=new.id, application=new.kind, mfa=new.mfa))
    if isinstance(user, LoginUser):
        user.last_login = new.created_at


def _by_user(account_id: str, user_id: str) -> tuple[Condition, ...]:
    return (SignInSession.account_id == account_id, SignInSession.user_id == user_id)


def _by_family(account_id: str, user_id: str, session_id: str) -> tuple[Condition, ...]:
    conditions = _by_user(account_id, user_id)
    return (*conditions, SignInSession.id == session_id, SignInSession.kind == SessionKind.API)


def _is_active(limits: SessionLimits = SERVICE_LIMITS) -> tuple[Condition, ...]:
    now = clock.now()
    return (
        SignInSession.revoked_at.is_(None),
        SignInSession.expires_at > now,
        # The settings may have been lowered since the session was renewed.
        SignInSession.created_at > now - limits.total,
        SignInSession.last_used_at > now - limits.idle,
    )


def _revoke_family(claims: Claims, *conditions: Condition) -> bool:
    account_id, user_id = claims["account_id"], claims["sub"]
    family = _by_family(account_id, user_id, claims["sid"])
    return revoke(account_id, user_id, *family, *conditions)


def revoke(account_id: str, user_id: str, *conditions: Condition) -> bool:
    """Revoke sessions of a user with their tokens; returns whether one was active."""
    where = (*_by_user(account_id, user_id), *conditions, SignInSession.revoked_at.is_(None))
    revocation = sa.update(SignInSession).where(*where).values(revoked_at=clock.now())
    user = sa.update(User).where(User.account_id == account_id, User.id == user_id)
    bump = user.values(version=User.version + 1, updated_at=User.updated_at)
    with db.transaction() as session:
        # The user first, in the lock order of all changes to users, to avoid deadlocks.
        session.execute(bump)
        result: Any = session.execute(revocation)
        if result.rowcount:
            events.publish(events.SessionsEnded(account_id, user_id, result.rowcount))
    return bool(result.rowcount)


_USERS, _SESSIONS = (db.Base.metadata.tables[name] for name in ("users", "sessions"))
_INITIALLY_NULL = ("revoked_at", "authenticated_at", "portal")
_NEW_SESSION = PreparedStatement(
    sa.insert(_SESSIONS).values(
        {c: sa.bindparam(f"_{c.name}") for c in _SESSIONS.c if c.name not in _INITIALLY_NULL}
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
