"""Mails that users have sent to addresses nobody has verified, such as invitations.

Whoever registers an account may be anyone, and these mails carry the service's own address. So they
are limited per account and day, count for its quota of mails, and name the user who caused them.
"""

from __future__ import annotations

from datetime import timedelta

from app import clock, config, db
from app.accounts.models import SYSTEM_ACCOUNT_ID, Account, User
from app.accounts.usage import models, quotas
from app.context import actor
from app.outbound import mail
from app.web import rate_limits
from app.web.rate_limits import Limit

DAY = 86_400
NEW_FOR = timedelta(days=7)
"""The age until which an account has the smaller limit."""


def count(account_id: str, number: int = 1) -> None:
    """Count mails to strangers. Raises TooManyRequests or QuotaExceeded past a limit.

    Superadmins answer for the service itself: their mails meet no limit of an account.
    """
    user_id = actor.current().user_id  # that of the system for commands and the service itself
    if account_id == SYSTEM_ACCOUNT_ID or user_id == actor.SYSTEM.user_id:
        return
    # Row-level security shows these users to superadmins only, which is enough here.
    if db.db.session.get(User, (SYSTEM_ACCOUNT_ID, user_id)) is not None:
        return
    quotas.check_stored(account_id, models.MAILS, number)
    if config.current().login_rate_limit != "off":
        rate_limits.consume(*[limit(account_id)] * number)


def limit(account_id: str) -> rate_limits.Allowance:
    """The allowance of an account today."""
    settings = config.current()
    account = db.db.session.get_one(Account, account_id)
    is_new = clock.now() - account.created_at < NEW_FOR
    tries = settings.mails_per_new_account if is_new else settings.mails_per_account
    return Limit("mail-strangers", min(tries, settings.mails_per_account), DAY).of(account_id)


def named(account_id: str, user_id: str | None) -> str | None:
    """A user of the account as mails name them, with their address; None for anybody else."""
    user = db.db.session.get(User, (account_id, user_id)) if user_id else None
    if user is None or not user.name:
        return user.email if user else None
    name = mail.plain_name(user.name)
    return f"{name} ({user.email})" if user.email else name
