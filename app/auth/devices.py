"""Known devices: limits of their own, and mails about sign-ins from new ones (docs/sign-in.md).

A device is known by a signed cookie, which lists the users who signed in there; for mails, without
cookies, also by the program and the network of a session that has not been deleted yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa
from itsdangerous import BadSignature

from app import clock, config, crypto, db, jobs
from app.accounts import service as accounts
from app.accounts import sign_in_settings
from app.accounts.models import User
from app.accounts.product import mails
from app.auth import tokens
from app.auth.login_users import LoginUser
from app.auth.models import SignInSession
from app.errors import TooManyRequests
from app.ids import new_id
from app.web import rate_limits, user_agents
from app.web.rate_limits import Limit

COOKIE, DAYS = "atrium_device", 365
MAX_USERS = 10  # of one device
MAX_SESSIONS = 500  # that are compared
MAX_AGENT_LENGTH = 400
PURPOSE = "known device"
ONE_MAIL_AN_HOUR = Limit("mail-device", 1, 3600)


@dataclass(frozen=True)
class Origin:
    """The client address and user agent of a request, and its device cookie."""

    ip_address: str | None
    user_agent: str | None
    device: str = ""


def cookie_value(current: str, user: User | LoginUser) -> str:
    """The cookie of a device where this user has signed in, too."""
    own = _digest(user.account_id, user.id)
    device, users = _read(current)
    others = [known for known in users if known != own]
    return crypto.sign({"id": device or new_id(), "users": [own, *others][:MAX_USERS]}, PURPOSE)


def known_id(cookie: str, account_id: str | None, user_id: str | None) -> str | None:
    """The id of a device where this user has signed in; None for another one."""
    device, users = _read(cookie)
    return device if _digest(account_id or "", user_id or "") in users else None


def known_id_by_email(cookie: str, account_id: str, email: str) -> str | None:
    """The same for the user with this address."""
    if not _read(cookie)[1]:
        return None  # without a query: most who ask for a mail have no cookie
    own = (User.account_id == account_id, User.email_key == accounts.email_key(email))
    return known_id(cookie, account_id, db.db.session.scalar(sa.select(User.id).where(*own)))


def needs_mail(user: User | LoginUser, origin: Origin) -> bool:
    """Whether to mail this user about a sign-in, at most once an hour; not about the first one."""
    return (
        user.last_login is not None
        and sign_in_settings.mails_new_devices(user.account.settings)
        and known_id(origin.device, user.account_id, user.id) is None
        and not _has_session(user, origin)
        and _allows_mail(user)
    )


def _allows_mail(user: User | LoginUser) -> bool:
    try:
        rate_limits.consume(ONE_MAIL_AN_HOUR.of(user.account_id, user.id))
    except TooManyRequests:
        return False
    return True


def enqueue_mail(user: User | LoginUser, origin: Origin, now: datetime) -> None:
    """Enqueue a mail about a sign-in, in the open transaction."""
    payload = {
        "user_id": user.id,
        "signed_in_at": clock.iso(now),
        "ip_address": origin.ip_address,
        "user_agent": (origin.user_agent or "")[:MAX_AGENT_LENGTH],
    }
    jobs.enqueue("auth.send_new_device", payload, account_id=user.account_id)


def _read(cookie: str) -> tuple[str | None, list[str]]:
    """The id of a device, and the digests of its users."""
    try:
        known = crypto.unsign(cookie, PURPOSE)
    except BadSignature:
        return None, []
    if isinstance(known, list):  # of an earlier release, without an id
        return tokens.digest(cookie)[:16], known
    return known["id"], known["users"]


def _digest(account_id: str, user_id: str) -> str:
    return tokens.digest(f"{account_id} {user_id}")[:16]


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
    mails.send(
        "new_device",
        user.email,
        user.account_id,
        account=user.account.name,
        user=user,
        link=f"{config.current().base_url}/welcome/profile",
        time=mails.shown_time(signed_in_at),
        address=payload["ip_address"] or "",
        user_agent=payload["user_agent"],
        program=user_agents.describe,
    )
