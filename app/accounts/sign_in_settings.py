"""An account's settings of how its users sign in and for how long."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

import sqlalchemy as sa

from app import clock, config, db
from app.accounts.models import Role
from app.accounts.types import Problem
from app.errors import problem
from app.types import JSONObject

Settings = Mapping[str, object]
NAMES = (
    *("mfa", "mfa_roles", "mfa_grace_days", "password_sign_in"),
    *("magic_link", "new_device_mail", "session_idle_hours", "session_max_hours"),
)


class MfaMode(StrEnum):
    """Whether users of an account may or must use second factors."""

    OFF = "off"
    OPTIONAL = "optional"
    REQUIRED = "required"


DEFAULTS: Settings = {"mfa": MfaMode.OPTIONAL, "password_sign_in": True, "new_device_mail": True}
"""The settings whose default is not false, empty or null."""
MAX_GRACE_DAYS = 90
MAX_IDLE_HOURS, MAX_SESSION_HOURS = 30 * 24, 365 * 24
REQUIRED_SINCE = "mfa_required_since"
"""The moment at which the account began to require second factors; grace periods count from it."""


@dataclass(frozen=True)
class SessionLimits:
    """The lifetime of an account's sessions, unused and in total; None: as the service's."""

    idle_hours: int | None = None
    max_hours: int | None = None

    @property
    def idle(self) -> timedelta:
        """The lifetime of a session without use."""
        return _shorter(self.idle_hours, config.current().refresh_token_expire_days)

    @property
    def total(self) -> timedelta:
        """The lifetime of a session, however much it is used."""
        return _shorter(self.max_hours, config.current().session_max_days)

    @property
    def lifetime(self) -> timedelta:
        """The lifetime of a session that is not renewed."""
        return min(self.idle, self.total)

    def ends_at(self, started_at: datetime, last_used_at: datetime) -> datetime:
        """The end of a session unless it is used again."""
        return min(started_at + self.total, last_used_at + self.idle)


SERVICE_LIMITS = SessionLimits()
"""The service's own."""


def session_limits(settings: Settings) -> SessionLimits:
    """The lifetimes of an account's sessions."""
    idle, total = settings.get("session_idle_hours"), settings.get("session_max_hours")
    return SessionLimits(
        idle if isinstance(idle, int) else None, total if isinstance(total, int) else None
    )


def _shorter(hours: int | None, days: int) -> timedelta:
    longest = timedelta(days=days)
    return longest if hours is None else min(timedelta(hours=hours), longest)


def problems(body: Settings) -> list[Problem]:
    """The problems of new settings: roles that do not exist."""
    names = body.get("mfa_roles")
    if not isinstance(names, list) or not names:
        return []
    known = set(db.db.session.scalars(sa.select(Role.name).where(Role.name.in_(names))))
    return [
        problem("mfa_roles", "invalid_option", f"There is no role {name}.")
        for name in names
        if name not in known
    ]


def merge(body: Settings, stored: Settings) -> JSONObject:
    """The new settings to store."""
    changed: JSONObject = {name: body[name] for name in NAMES if name in body}
    if changed.get("mfa") == MfaMode.REQUIRED and mode(stored) != MfaMode.REQUIRED:
        changed[REQUIRED_SINCE] = clock.iso(clock.now())
    return changed


def mode(settings: Settings) -> str:
    """Whether second factors are off, optional or required."""
    return str(settings.get("mfa") or MfaMode.OPTIONAL)


def allows_passwords(settings: Settings) -> bool:
    """Whether users may sign in by password."""
    return settings.get("password_sign_in") is not False


def allows_magic_links(settings: Settings) -> bool:
    """Whether users may sign in by a mailed link; not where only providers sign in."""
    return settings.get("magic_link") is True and allows_passwords(settings)


def mails_new_devices(settings: Settings) -> bool:
    """Whether users get a mail about a sign-in from a new device."""
    return settings.get("new_device_mail") is not False


def required_from(settings: Settings, role: str, created_at: datetime) -> datetime | None:
    """The moment from which a user of this role needs a second factor; None: never.

    The grace period begins when the account requires second factors, or when the user is created.
    """
    roles = settings.get("mfa_roles")
    is_concerned = not roles or (isinstance(roles, list) and role in roles)
    if mode(settings) != MfaMode.REQUIRED or not is_concerned:
        return None
    since = clock.parse(str(settings[REQUIRED_SINCE]))
    days = settings.get("mfa_grace_days")
    grace = timedelta(days=days if isinstance(days, int) else 0)
    return max(since, created_at) + grace
