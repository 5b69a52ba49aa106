"""Creating the first superadmin."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress

from app import config
from app.accounts import service as accounts
from app.auth import mail_tokens, passwords
from app.auth.models import LinkPurpose
from app.errors import Conflict

CREDENTIALS = "superadmin.txt"
"""In the instance folder of a development system: the first superadmin's password."""


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

    Returns the address and the generated password, which stand in CREDENTIALS, too.
    """
    if config.current().production or accounts.has_superadmin():
        return None
    email, password = "admin@localhost", f"Aa1-{secrets.token_urlsafe(12)}"
    if not _create(email, password):
        return None
    file = config.current().instance_dir / CREDENTIALS
    with suppress(FileNotFoundError):
        file.unlink()
    with os.fdopen(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as written:
        written.write(f"account   system\nemail     {email}\npassword  {password}\n")
    return email, password


def sign_in_link() -> str | None:
    """In development, the path of a link that signs the first superadmin in, once."""
    superadmin = None if config.current().production else accounts.first_superadmin()
    if superadmin is None:
        return None
    return f"/console/sign-in-link?token={mail_tokens.issue(superadmin, LinkPurpose.SIGN_IN)}"


def _create(email: str, password: str) -> bool:
    try:
        accounts.create_superadmin(email, passwords.hash(password))
    except Conflict:  # another process created it first
        return False
    return True
