"""The first superadmin (contract section 12)."""

from __future__ import annotations

import secrets

from app import config
from app.accounts import service as accounts
from app.auth import passwords
from app.errors import Conflict


def from_settings() -> None:
    """Make the superadmin that the settings name, if there is none at all."""
    settings = config.current()
    email, password = settings.superadmin_email, settings.superadmin_password
    weak = passwords.problems(password, own=(email,)) if email else []
    if weak and settings.production:
        wanted = " ".join(str(one["message"]) for one in weak)
        raise config.ConfigError(f"SERVICE_SUPERADMIN_PASSWORD is too weak. {wanted}")
    if settings.superadmin_email and not accounts.has_superadmin():
        _make(settings.superadmin_email, settings.superadmin_password)


def made_up() -> tuple[str, str] | None:
    """In development, where there is none, make one. Returns its address and new password."""
    if config.current().production or accounts.has_superadmin():
        return None
    email, password = "admin@localhost", f"Aa1-{secrets.token_urlsafe(12)}"
    return (email, password) if _make(email, password) else None


def _make(email: str, password: str) -> bool:
    try:
        accounts.create_superadmin(email, passwords.hash(password))
    except Conflict:  # another process that starts at the same time was faster
        return False
    return True
