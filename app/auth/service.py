"""Registration, verification of addresses, signing in and out (contract sections 2 and 3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import sqlalchemy as sa
import structlog
from sqlalchemy.orm import lazyload

from app import clock, config, db, jobs, mail, stamps
from app.accounts import codes
from app.accounts import service as accounts
from app.accounts.models import ADMIN, PII_GROUP, SYSTEM_ACCOUNT_ID, Account, User
from app.auth import passwords, tokens
from app.auth import principal as principals
from app.auth.models import EmailVerificationToken, SignInSession
from app.auth.principal import Principal
from app.errors import BadRequest, Forbidden, InvalidValues, Unauthorized, problem

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

    user: User
    access_token: str
    refresh_token: str


def register(*, name: str | None, slug: str | None, email: str, password: str) -> User:
    """Found an account with its first user. Raises InvalidValues, or Conflict for a taken slug."""
    email, name = email.strip(), (name or "").strip()
    slug = (slug or codes.slug_from(name)).strip()
    _check_registration(name or slug, slug, email, password)
    password_hash = passwords.hash(password)  # before the transaction: it takes its time
    with db.transaction():
        account = accounts.create_account(name or slug, slug)
        user = accounts.create_user(
            account.id, email=email, password_hash=password_hash, role=ADMIN
        )
        accounts.join_group(user, PII_GROUP)
        _ask_to_verify(user.account_id, user.id)
    return user


def _check_registration(name: str, slug: str, email: str, password: str) -> None:
    found = [*passwords.problems(password), accounts.email_problem(email)]
    slug_problem = codes.slug_problem(slug)
    if slug_problem:
        found.append(problem("account_slug", "slug_invalid", slug_problem))
    found.append(accounts.name_problem(name, "account_name"))
    if any(found):
        raise InvalidValues([one for one in found if one])


def send_verification(caller: Principal, email: str | None) -> None:
    """Mail a new link to the caller, or to a user of the account that the caller administers."""
    key = accounts.email_key(email or caller.email or "")
    if key == accounts.email_key(caller.email or "") and caller.home:
        with db.transaction():
            _ask_to_verify(caller.home.id, caller.user_id or "")
        return
    if not caller.is_admin or caller.account_id is None:
        raise Forbidden("Only an admin may name another user.")
    resend_verification(caller.account_id, key)


def resend_verification(account: str | None, email: str) -> None:
    """Mail a new link if there is such a user; the caller cannot tell, not even by the time."""
    if account is None:
        raise InvalidValues([_account_required()])
    with db.transaction():
        payload = {"account": account, "email": email}
        jobs.enqueue("auth.resend_verification", payload, account_id=SYSTEM_ACCOUNT_ID)


def verify_email(token: str) -> User:
    """Prove an address by the token that was mailed to it. Raises BadRequest `invalid_token`."""
    code, _, _ = token.partition("-")
    mine = sa.select(Account.id).where(Account.account_code == code).scalar_subquery()
    with db.transaction() as session:
        used = session.execute(
            sa.delete(EmailVerificationToken)
            .where(
                EmailVerificationToken.account_id == mine,
                EmailVerificationToken.token_hash == tokens.digest(token),
            )
            .returning(*_columns(EmailVerificationToken, "account_id", "user_id", "expires_at"))
        ).first()
        if used is not None and used.expires_at > clock.now():
            user = session.get_one(User, (used.account_id, used.user_id))
            accounts.mark_verified(user)
            return user
    raise BadRequest("This link is not valid any more. Ask for a new one.", error="invalid_token")


def login(*, account: str | None, email: str, password: str, origin: Origin) -> SignIn:
    """Sign in by password. Raises Unauthorized, alike in answer and time for every failure."""
    user = check_password(account, email, password)
    refresh_token = start_session(user, origin)
    return SignIn(user, _access_token(user), refresh_token)


def check_password(account: str | None, email: str, password: str) -> User:
    """The active, verified user with this password. Raises Unauthorized or InvalidValues."""
    if not account:
        raise InvalidValues([_account_required()])
    # Without the groups: a query more for known users than for unknown ones would show.
    named = _user_named(account, email).options(lazyload(User.groups))
    user = db.db.session.scalar(named)
    fits = passwords.verify(password, user.password_hash if user else None)
    if user is None or not fits or not user.is_active or not user.account.is_active:
        raise Unauthorized(
            "Account, user name or password are not right.", error="authentication_failed"
        )
    if not user.email_verified:
        raise Unauthorized(
            "Verify your email address first: please check your inbox.", error="email_not_verified"
        )
    return user


def start_session(user: User, origin: Origin) -> str:
    """Begin a token family of a user. Returns its first refresh token."""
    session_id = db.new_id()
    token, jti = tokens.refresh(user_id=user.id, account_id=user.account_id, session_id=session_id)
    with db.transaction() as session:
        session.add(_session(user, session_id, "api", jti, origin))
        _note_login(user)
    return token


def start_console_session(user: User, origin: Origin) -> str:
    """Begin a console session. Returns the secret that its cookie carries."""
    secret = tokens.random_token(user.account.account_code)
    with db.transaction() as session:
        session.add(_session(user, db.new_id(), "console", secret, origin))
        _note_login(user)
    return secret


def console_caller(secret: str) -> tuple[Principal, str] | None:
    """The principal and session id of a console cookie, if the session is still alive."""
    account = principals.account_named(secret.partition("-")[0])
    if account is None:
        return None
    alive = (
        SignInSession.account_id == account.id,
        SignInSession.token_hash == tokens.digest(secret),
        SignInSession.kind == "console",
        SignInSession.revoked_at.is_(None),
        SignInSession.expires_at > clock.now(),
    )
    found = (
        db.connection()
        .execute(sa.select(*_columns(SignInSession, "id", "user_id")).where(*alive))
        .first()
    )
    with stamps.reloading():  # no statement of a page checks what was cached
        caller = principals.of_user(account.id, found.user_id) if found else None
    return (caller, found.id) if found and caller else None


def refresh(token: str) -> SignIn:
    """Trade a refresh token for a new pair. A token used before ends its whole family."""
    claims = tokens.read(token, tokens.REFRESH)
    mine = _family(claims)
    new_token, jti = tokens.refresh(
        user_id=claims["sub"], account_id=claims["account_id"], session_id=claims.get("sid", "")
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
            if user and user.is_active and user.account.is_active:
                return SignIn(user, _access_token(user), new_token)
        _revoke(session, *mine)
        log.warning("refresh token used again", account=claims["account_id"], user=claims["sub"])
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


def user_of(caller: Principal) -> User:
    """The row of the signed-in caller."""
    key = (caller.home.id if caller.home else "", caller.user_id or "")
    return db.db.session.get_one(User, key)


@jobs.job("auth.send_verification")
def _mail_verification(payload: Mapping[str, Any]) -> None:
    # The token is made here, where the mail is sent, so that it is stored nowhere else.
    with db.transaction() as session:
        user = session.get(User, (payload["account_id"], payload["user_id"]))
        if user is None or user.email_verified or not user.is_active:
            return
        token = tokens.random_token(user.account.account_code)
        mine = (
            EmailVerificationToken.account_id == user.account_id,
            EmailVerificationToken.user_id == user.id,
        )
        session.execute(sa.delete(EmailVerificationToken).where(*mine))
        session.add(
            EmailVerificationToken(
                account_id=user.account_id,
                user_id=user.id,
                token_hash=tokens.digest(token),
                expires_at=clock.now() + VERIFICATION_LIFETIME,
            )
        )
    link = f"{config.current().base_url}/auth/verify-email?token={quote(token)}"
    mail.send(user.email, "verification", link=link, account=user.account.name)


@jobs.job("auth.resend_verification")
def _resend_verification(payload: Mapping[str, Any]) -> None:
    user = db.db.session.scalar(_user_named(payload["account"], payload["email"]))
    if user is not None:
        _mail_verification({"account_id": user.account_id, "user_id": user.id})


def _ask_to_verify(account_id: str, user_id: str) -> None:
    jobs.enqueue("auth.send_verification", {"user_id": user_id}, account_id=account_id)


def _user_named(account: str, email: str) -> sa.Select[User]:
    found = principals.find_account(account.strip().lower()).with_only_columns(Account.id)
    return sa.select(User).where(
        User.account_id == found.scalar_subquery(), User.email_key == accounts.email_key(email)
    )


def _account_required() -> dict[str, Any]:
    return problem("account", "required", "Name the account: its slug, code or id.")


def _session(user: User, id: str, kind: str, secret: str, origin: Origin) -> SignInSession:
    lifetime = timedelta(days=config.current().refresh_token_expire_days)
    return SignInSession(
        account_id=user.account_id,
        id=id,
        user_id=user.id,
        kind=kind,
        token_hash=tokens.digest(secret),
        ip_address=origin.ip_address,
        user_agent=(origin.user_agent or "")[:LONGEST_AGENT] or None,
        expires_at=clock.now() + lifetime,
    )


def _note_login(user: User) -> None:
    mine = (User.account_id == user.account_id, User.id == user.id)
    note = sa.update(User).where(*mine).values(last_login=clock.now(), updated_at=User.updated_at)
    db.db.session.execute(note)


def _access_token(user: User) -> str:
    return tokens.access(
        user_id=user.id, account_id=user.account_id, email=user.email, role=user.role.name
    )


def _family(claims: Mapping[str, Any]) -> tuple[Any, ...]:
    return (
        SignInSession.account_id == claims["account_id"],
        SignInSession.id == str(claims.get("sid")),
        SignInSession.user_id == claims["sub"],
        SignInSession.kind == "api",
    )


def _alive() -> tuple[Any, ...]:
    return (SignInSession.revoked_at.is_(None), SignInSession.expires_at > clock.now())


def _revoke(session: Any, *which: Any) -> None:
    alive = SignInSession.revoked_at.is_(None)
    session.execute(sa.update(SignInSession).where(*which, alive).values(revoked_at=clock.now()))


def _columns(model: type[db.Base], *names: str) -> list[Any]:
    return [model.__table__.c[name] for name in names]
