"""Mails about sign-ins from new devices (contract section 18).

A device is known by a signed cookie, which lists the users who signed in there, or without cookies
by the program and the network of a session that has not been deleted yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa
from itsdangerous import BadSignature

from app import clock, config, crypto, db, jobs
from app.accounts import sign_in_settings
from app.accounts.models import User
from app.auth import lockout, tokens
from app.auth.login_users import LoginUser
from app.auth.models import SignInSession
from app.http import rate_limits, user_agents
from app.outbound import mail

COOKIE, DAYS = "atrium_device", 365
MAX_USERS = 10  # of one device
MAX_SESSIONS = 500  # that are compared
MAX_AGENT_LENGTH = 400
PURPOSE = "known device"


@dataclass(frozen=True)
class Origin:
    """The client address and user agent of a request, and its device cookie."""

    ip_address: str | None
    user_agent: str | None
    device: str = ""


def cookie_value(current: str, user: User | LoginUser) -> str:
    """The cookie of a device where this user has signed in, too."""
    others = [known for known in _users_of(current) if known != _digest(user)]
    return crypto.sign([_digest(user), *others][:MAX_USERS], PURPOSE)


def needs_mail(user: User | LoginUser, origin: Origin) -> bool:
    """Whether to mail this user about a sign-in, at most once an hour; not about the first one."""
    return (
        user.last_login is not None
        and sign_in_settings.mails_new_devices(user.account.settings)
        and _digest(user) not in _users_of(origin.device)
        and not _has_session(user, origin)
        and lockout.allows_device_mail(user.account_id, user.id)
    )


def enqueue_mail(user: User | LoginUser, origin: Origin, now: datetime) -> None:
    """Enqueue a mail about a sign-in, in the open transaction."""
    payload = {
        "user_id": user.id,
        "signed_in_at": clock.iso(now),
        "ip_address": origin.ip_address,
        "user_agent": (origin.user_agent or "")[:MAX_AGENT_LENGTH],
    }
    jobs.enqueue("auth.send_new_device", payload, account_id=user.account_id)


def _users_of(cookie: str) -> list[str]:
    try:
        known = crypto.unsign(cookie, PURPOSE)
    except BadSignature:
        return []
    return known if isinstance(known, list) else []


def _digest(user: User | LoginUser) -> str:
    return tokens.digest(f"{user.account_id} {user.id}")[:16]


def _has_session(user: User | LoginUser, origin: Origin) -> bool:
    query = sa.select(SignInSession.user_agent, SignInSession.ip_address).where(
        SignInSession.account_id == user.account_id, SignInSession.user_id == user.id
    )
    rows = db.db.session.execute(query.limit(MAX_SESSIONS))
    return _client(origin.user_agent, origin.ip_address) in {_client(*row) for row in rows}


def _client(user_agent: str | None, address: str | None) -> tuple[user_agents.Family, str]:
    return user_agents.family(user_agent), rate_limits.client_network(address)


@jobs.job("auth.send_new_device", mails=True)
def _mail_new_device(payload: Mapping[str, str | None]) -> None:
    user = db.db.session.get(User, (payload["account_id"], payload["user_id"]))
    if user is None or not user.may_sign_in:
        return
    signed_in_at = clock.parse(payload["signed_in_at"] or "")
    mail.send(
        user.email,
        "new_device",
        language=user.language,
        account=user.account.name,
        link=f"{config.current().base_url}/console/profile",
        time=f"{signed_in_at:%Y-%m-%d %H:%M} UTC",
        address=payload["ip_address"] or "",
        user_agent=payload["user_agent"],
        program=user_agents.describe,
    )
