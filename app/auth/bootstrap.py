"""Creating the first superadmin (contract section 12)."""

from __future__ import annotations

import secrets

from app import config
from app.accounts import service as accounts
from app.auth import passwords
from app.errors import Conflict


def create_from_settings() -> None:
    """Create the superadmin of the settings unless there is a superadmin already.

    Raises ConfigError for a weak password in production.
    """
    settings = config.current()
    email, password = settings.superadmin_email, settings.superadmin_password
    weak = passwords.problems(password, own=(email,)) if email else []
    if weak and settings.production:
        requirements = " ".join(str(problem["message"]) for problem in weak)
        raise config.ConfigError(f"SERVICE_SUPERADMIN_PASSWORD is too weak. {requirements}")
    if settings.superadmin_email and not accounts.has_superadmin():
        _create(settings.superadmin_email, settings.superadmin_password)


def create_for_development() -> tuple[str, str] | None:
    """Create a superadmin in development, if there is none.

    Returns the address and the generated password.
    """
    if config.current().production or accounts.has_superadmin():
        return None
    email, password = "admin@localhost", f"Aa1-{secrets.token_urlsafe(12)}"
    return (email, password) if _create(email, password) else None


def _create(email: str, password: str) -> bool:
    try:
        accounts.create_superadmin(email, passwords.hash(password))
    except Conflict:  # another process created it first
        return False
    return True
