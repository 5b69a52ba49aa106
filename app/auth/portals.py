"""Portal sessions: pages of an account's administration within a product's own page.

A session is created with an address that opens it once; the browser then has a secret of its own.
It is a session of the user it acts as, and ends as their others do.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any
from urllib.parse import quote

import sqlalchemy as sa

from app import clock, config, db, events
from app.accounts import pii, users
from app.accounts.models import ADMIN, PII_GROUP, SYSTEM_ACCOUNT_ID, Account, User
from app.accounts.product import settings as product
from app.accounts.types import Body, Condition
from app.auth import api_keys, sessions, tokens
from app.auth import principal as principals
from app.auth.devices import MAX_AGENT_LENGTH, Origin
from app.auth.models import SessionKind, SignInSession
from app.auth.principal import Portal, Principal
from app.context import tenancy
from app.db import versioned_cache
from app.errors import Conflict, Forbidden, Gone, InvalidValues, NotFound, problem
from app.ids import new_id

PATH = "/portal"
DEFAULT_SECONDS, MIN_SECONDS, MAX_SECONDS = 3600, 60, 8 * 3600
MAX_OPEN = 100
"""Sessions of one user that have not ended."""
NOT_FOR_SYSTEM = "The system account has no portal."
NO_ADMIN = "There is no active admin of this account with this id."
NO_USER = "Name an admin of the account: you are no user of it."
NOT_LISTED = "Must be on the account's allowed_redirect_uris, or a link of the product."
OPENED = "This address was opened already, or is no longer valid. Go back, and open the page again."


class PortalPage(StrEnum):
    """What a portal session may open."""

    TEAM = "team"
    SSO = "sso"
    DOMAINS = "domains"
    SCIM = "scim"
    API_KEYS = "api_keys"
    WEBHOOKS = "webhooks"
    AUDIT_LOG = "audit_log"
    SECURITY_LOG = "security_log"
    USAGE = "usage"
    EXPORT = "export"


def create(body: Body, *, by: Principal) -> tuple[str, datetime]:
    """Create a session in the account acted in; returns its address and its end.

    Raises InvalidValues, Conflict beyond 100 sessions of the user, or Forbidden without a recent
    sign-in, in the system account, and for a member of `pii_access` unless the caller is one.
    """
    if not by.is_operator_key:
        by.require_recent_sign_in()
    account_id = by.require_account_id()
    if account_id == SYSTEM_ACCOUNT_ID:
        raise Forbidden(NOT_FOR_SYSTEM)
    home, caller_id = by.home_and_user()
    user_id = body.get("user_id", caller_id if home.id == account_id else None)
    expires_at = clock.now() + timedelta(seconds=body.get("expires_in", DEFAULT_SECONDS))
    with db.transaction() as session:
        sessions.lock_user(by)
        account = session.get_one(Account, account_id)
        problems = [*_problems(account, body["return_url"])]
        # Locked: what ends the user's sessions comes before this one, or ends it.
        user = _admin(account_id, user_id) if user_id is not None else None
        if user is None:
            message = NO_USER if user_id is None else NO_ADMIN
            problems.append(problem("user_id", "invalid_reference", message))
        if problems or user is None:
            raise InvalidValues(problems)
        # Of a portal that an operator key opens, nobody is a member.
        is_member = (
            user.id != caller_id and not by.is_operator_key and pii.is_member(account_id, user.id)
        )
        if is_member and not pii.is_trusted(account_id, caller_id):
            raise Forbidden(pii.ONLY_MEMBERS)
        own = (SignInSession.account_id == account_id, SignInSession.user_id == user.id)
        count = sa.select(sa.func.count()).select_from(SignInSession).where(*own, *_is_open())
        if (session.scalar(count) or 0) >= MAX_OPEN:
            raise Conflict(f"A user has at most {MAX_OPEN} portal sessions. End some first.")
        token = add(user, body, expires_at, by=by)
    return f"{config.current().base_url}{PATH}/open/{quote(token)}", expires_at


def add(
    user: User, body: Body, expires_at: datetime, *, by: Principal, id: str | None = None
) -> str:
    """Store a session, whose pages and so on are checked; returns the token of its address."""
    token, now = tokens.random_token(user.account.account_code), clock.now()
    home, caller_id = by.home_and_user()
    row = SignInSession(
        account_id=user.account_id,
        id=id or new_id(),
        user_id=user.id,
        kind=SessionKind.PORTAL,
        token_hash=_opening_hash(token),
        created_at=now,
        last_used_at=now,
        expires_at=expires_at,
        # Not later: what needs a recent sign-in needs that of whoever opened the portal.
        authenticated_at=datetime.fromtimestamp(by.auth_time or 0, UTC),
        mfa=by.mfa and user.id == caller_id,
        portal={
            "pages": list(body["pages"]),
            "return_url": body["return_url"],
            "opened_by": [home.id, caller_id, *([by.api_key_id] if by.api_key_id else ())],
            "opener_tokens": by.min_token_id,
        },
    )
    with db.transaction() as session:
        session.add(row)
        events.publish(
            events.PortalCreated(
                user.account_id, user.id, session_id=row.id, pages=list(body["pages"])
            )
        )
    return token


def open(token: str, origin: Origin) -> tuple[SignInSession, str]:
    """Use up an address: returns the session with the secret of its cookie. Raises Gone."""
    with versioned_cache.reloading():
        account = principals.find_active_account(token.partition("-")[0][:20])
    if account is None or "\0" in token:
        raise Gone(OPENED)
    secret = tokens.random_token(account.account_code)
    values = {
        "token_hash": tokens.digest(secret),
        "ip_address": origin.ip_address,
        "user_agent": (origin.user_agent or "")[:MAX_AGENT_LENGTH] or None,
        "last_used_at": clock.now(),
    }
    unopened = (
        SignInSession.account_id == account.id,
        SignInSession.token_hash == _opening_hash(token),
        *_is_open(),
    )
    opening = sa.update(SignInSession).where(*unopened).values(**values)
    with tenancy.in_account(account.id), db.transaction() as session:
        result: Any = session.execute(opening.execution_options(synchronize_session=False))
        row = _find(account.id, tokens.digest(secret)) if result.rowcount else None
        principal = _principal(row) if row else None
        if row is None or principal is None:
            raise Gone(OPENED)
        who = (account.id, row.user_id, principal.email or "", principal.name)
        events.publish(events.SignedIn(*who, session_id=row.id, application=row.kind, mfa=row.mfa))
    return row, secret


def authenticate(session_id: str, secret: str) -> Principal | None:
    """Return the user that an opened session acts as, restricted to its pages; None if it ended."""
    account = principals.find_active_account(secret.partition("-")[0][:20])
    if account is None:
        return None
    with tenancy.in_account(account.id):
        row = _find(account.id, tokens.digest(secret))
        principal = _principal(row) if row and row.id == session_id.lower() else None
        if row is None or principal is None:
            return None
        if clock.now() - row.last_used_at >= tokens.USE_INTERVAL:
            tokens.record_session_use(account.id, row.id, clock.now())
    return principal


def return_url(session_id: str, secret: str) -> str | None:
    """Return where a session leads back to, also once it has ended."""
    account = principals.find_active_account(secret.partition("-")[0][:20])
    if account is None:
        return None
    with tenancy.in_account(account.id):
        row = db.db.session.get(SignInSession, (account.id, session_id.lower()))
    is_own = row is not None and row.token_hash == tokens.digest(secret)
    return row.portal["return_url"] if is_own and row and row.portal else None


def end(session_id: str, *, by: Principal) -> None:
    """End the session that the caller acts in."""
    sessions.end(*sessions.user_key(by), session_id)


def _problems(account: Account, return_url: str) -> list[Any]:
    listed = account.settings.get("allowed_redirect_uris", ())
    if product.is_listed(return_url, listed) or return_url == product.load().url:
        return []
    return [problem("return_url", "invalid_option", NOT_LISTED)]


def _admin(account_id: str, user_id: str) -> User | None:
    try:
        user = users.get_for_update(db.db.session(), account_id, user_id)
    except NotFound:
        return None
    return user if user.may_sign_in and user.role.name == ADMIN else None


def _find(account_id: str, token_hash: str) -> SignInSession | None:
    own = (SignInSession.account_id == account_id, SignInSession.token_hash == token_hash)
    query = sa.select(SignInSession).where(*own, *_is_open())
    row: SignInSession | None = db.db.session.scalar(
        query.execution_options(populate_existing=True)
    )
    return row


def _principal(row: SignInSession) -> Principal | None:
    """The user of a session, while they and whoever opened it are admins.

    As at its creation, a member of `pii_access` is acted as by members only. It ends once all
    sessions of whoever opened it were ended; what an operator key has opened ends with the key,
    too, and acts outside of that group.
    """
    portal = row.portal or {}
    principal = principals.for_user_verified(row.account_id, row.user_id)
    home_id, opener_id, *key_ids = portal["opened_by"]
    with tenancy.across_accounts():
        opener = principals.for_user_verified(home_id, opener_id)
        for key_id in key_ids:
            if not api_keys.is_valid(home_id, key_id):
                return None
    if key_ids and principal is not None:
        principal = replace(principal, groups=principal.groups - {PII_GROUP})
    if principal is None or not principal.is_admin or opener is None or not opener.is_admin:
        return None
    if portal.get("opener_tokens", opener.min_token_id) != opener.min_token_id:
        return None
    is_own = opener_id == row.user_id
    if PII_GROUP in principal.groups and not (is_own or PII_GROUP in opener.groups):
        return None
    ends_at = principal.session_limits.ends_at(row.created_at, row.last_used_at)
    if ends_at <= clock.now():
        return None
    return replace(
        principal,
        session_id=row.id,
        session_ends_at=min(ends_at, row.expires_at),
        auth_time=(row.authenticated_at or row.created_at).timestamp(),
        mfa=row.mfa,
        portal=Portal(tuple(portal["pages"]), portal["return_url"], is_own=is_own),
    )


def _is_open() -> tuple[Condition, ...]:
    return (
        SignInSession.kind == SessionKind.PORTAL,
        SignInSession.revoked_at.is_(None),
        SignInSession.expires_at > clock.now(),
    )


def _opening_hash(token: str) -> str:
    # Of another form than that of the cookie's secret: neither serves as the other.
    return tokens.digest(f"{PATH}/open/{token}")
