"""Who guesses passwords, or has mails sent, is slowed down (contract section 3)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from app import config, db, limits
from app.accounts.models import Account
from app.accounts.service import email_key
from app.auth import principal as principals
from app.errors import Unauthorized
from app.limits import Limit

QUARTER_HOUR, HOUR = 15, 60


@contextmanager
def guesses(account: str, email: str, address: str | None) -> Iterator[None]:
    """Refuse guesses past the limits, and count every one that fails. Raises TooManyRequests."""
    settings = config.current()
    who = (_account_key(account), email_key(email))
    allowances = (
        Limit("login", settings.login_tries, QUARTER_HOUR).of(*who, address),
        Limit("login-address", settings.login_tries_per_address, QUARTER_HOUR).of(address),
        Limit("login-user", settings.login_tries_per_user, QUARTER_HOUR).of(*who),
    )
    limits.check(*allowances)
    try:
        yield
    except Unauthorized as error:
        if error.error == "authentication_failed":
            limits.use(*allowances)
        raise


def _account_key(named: str) -> str:
    # Its slug, code and id are one account, and must not give three times the tries.
    named = named.strip().lower()
    found = principals.find_account(named).with_only_columns(Account.id)
    return db.db.session.scalar(found) or named


def mails(email: str, address: str | None) -> None:
    """Count a request that has a mail sent. Raises TooManyRequests past the limits."""
    settings = config.current()
    limits.check_and_use(
        Limit("mail", settings.mail_tries, HOUR).of(email_key(email)),
        Limit("mail-address", settings.mail_tries_per_address, HOUR).of(address),
    )
