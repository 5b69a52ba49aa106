"""Rate limits for password guesses, mails, sign-ins and requests (contract section 3)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from app import config, events
from app.accounts.models import SYSTEM_ACCOUNT_ID, User
from app.accounts.service import email_key
from app.auth import stranger_mails
from app.auth.principal import Principal, find_account
from app.errors import TooManyRequests, Unauthorized
from app.http import rate_limits
from app.http.rate_limits import Allowance, Limit

QUARTER_HOUR, HOUR, DAY = 900, 3600, 86_400
SECOND_FACTOR_TRIES_PER_DAY = 50  # of a million codes, three work at a time
NEW_ACCOUNT = ""


@contextmanager
def limit_guesses(account: str, email: str, address: str | None) -> Iterator[None]:
    """Count failed password checks inside the block, and refuse all checks past the limits.

    `account` is the account's id, or the name that was given for an unknown account.
    Raises TooManyRequests.
    """
    allowances = _login_limits(account, email, rate_limits.client_network(address))
    rate_limits.check(*allowances)
    try:
        yield
    except Unauthorized as error:
        record_guess(allowances, right=error.error != "authentication_failed")
        raise
    record_guess(allowances, right=True)


@contextmanager
def publishing_failures(account_id: str | None, user_id: str | None, email: str) -> Iterator[None]:
    """Publish refused sign-ins in the block; of an unknown account to the system account.

    So both take the same time.
    """
    try:
        yield
    except (Unauthorized, TooManyRequests) as error:
        chain = account_id or SYSTEM_ACCOUNT_ID
        events.publish(events.SignInFailed(chain, user_id, email, error.error))
        raise


def publish_failure(user: User, reason: str) -> None:
    """Publish that a known user's credential was refused."""
    events.publish(events.SignInFailed(user.account_id, user.id, user.email, reason))


def record_guess(allowances: Sequence[Allowance], *, right: bool) -> None:
    """Count the result of a password check. Raises TooManyRequests.

    Checks again first: concurrent guesses all started before any was counted, and past the limit
    even a right one must be refused.
    """
    rate_limits.check(*allowances)
    if not right:
        rate_limits.consume(*allowances)


def _login_limits(account: str, email: str, origin: str) -> tuple[Allowance, ...]:
    settings = config.current()
    if settings.login_rate_limit == "off":
        return ()
    user = (account.strip().lower(), email_key(email))
    return (
        Limit("login", settings.login_tries, QUARTER_HOUR).of(*user, origin),
        Limit("login-address", settings.login_tries_per_address, QUARTER_HOUR).of(origin),
        Limit("login-user", settings.login_tries_per_user, QUARTER_HOUR).of(*user),
    )


def own_password_limits(user: User) -> tuple[Allowance, ...]:
    """The limit on wrong current passwords of a signed-in user."""
    settings = config.current()
    if settings.login_rate_limit == "off":
        return ()
    limit = Limit("own-password", settings.login_tries, QUARTER_HOUR)
    return (limit.of(user.account_id, user.id),)


@contextmanager
def limit_passkeys(address: str | None) -> Iterator[None]:
    """Count failed sign-ins by passkey in the block. Raises TooManyRequests past the limit."""
    settings = config.current()
    if settings.login_rate_limit == "off":
        yield
        return
    limit = Limit("passkey-address", settings.login_tries_per_address, QUARTER_HOUR)
    allowance = limit.of(rate_limits.client_network(address))
    rate_limits.check(allowance)
    try:
        yield
    except Unauthorized:
        rate_limits.consume(allowance)
        raise


def second_factor_limits(user: User) -> tuple[Allowance, ...]:
    """The limits on wrong second factors of a user."""
    settings, key = config.current(), (user.account_id, user.id)
    if settings.login_rate_limit == "off":
        return ()
    return (
        Limit("second-factor", settings.login_tries, QUARTER_HOUR).of(*key),
        Limit("second-factor-day", SECOND_FACTOR_TRIES_PER_DAY, DAY).of(*key),
    )


def count_mail_request(
    account: str, email: str, address: str | None, *, reset: bool = False
) -> None:
    """Count an anonymous request that sends a mail. Raises TooManyRequests past the limits.

    `account` is a slug, code or id, or NEW_ACCOUNT. Password resets (`reset`) are exempt from the
    limit over all accounts.
    """
    if config.current().login_rate_limit == "off":
        return
    row = find_account(account) if account else None
    account_id = row.id if row else account.strip().lower()
    tries = config.current().mail_tries_per_address
    allowances = (
        *_mail_limits(account_id, email, reset=reset),
        Limit("mail-address", tries, HOUR).of(rate_limits.client_network(address)),
    )
    rate_limits.check(*allowances)
    rate_limits.consume(*allowances)


def count_mail(account_id: str, email: str, *, verified: bool = False) -> None:
    """Count a mail that a signed-in user triggers. Raises TooManyRequests or QuotaExceeded."""
    if not verified:
        stranger_mails.count(account_id)
    if config.current().login_rate_limit != "off":
        rate_limits.consume(*_mail_limits(account_id, email, reset=verified))


def count_own_address(account_id: str, user_id: str, email: str) -> None:
    """Count a mail to a user's own new address. Raises TooManyRequests.

    Not for the account: one member must not use up the mails of all.
    """
    if config.current().login_rate_limit != "off":
        own = Limit("mail-own-address", config.current().mail_tries, DAY).of(account_id, user_id)
        rate_limits.consume(own, *_mail_limits(account_id, email, reset=False))


def beyond_mail_limit(account_id: str, emails: Sequence[str]) -> list[str]:
    """The addresses that a signed-in user may not have mailed now; counts nothing."""
    if config.current().login_rate_limit == "off":
        return []
    limits = {email: _mail_limits(account_id, email, reset=False) for email in emails}
    if _are_left(*itertools.chain(*limits.values())):
        return []
    return [email for email, allowances in limits.items() if not _are_left(*allowances)]


def _are_left(*allowances: Allowance) -> bool:
    try:
        rate_limits.check(*allowances)
    except TooManyRequests:
        return False
    return True


def allows_unverified_reset(email: str) -> bool:
    """Count a password reset for an unverified address; returns whether it may be sent.

    Otherwise users created with a stranger's address in many accounts would flood that mailbox.
    """
    try:
        if config.current().login_rate_limit != "off":
            rate_limits.consume(_mailbox_limit(email))
    except TooManyRequests:
        return False
    return True


def allows_device_mail(account_id: str, user_id: str) -> bool:
    """Count a mail about a new device of a user; returns whether it may be sent: one an hour."""
    try:
        rate_limits.consume(Limit("mail-device", 1, HOUR).of(account_id, user_id))
    except TooManyRequests:
        return False
    return True


def _mail_limits(account: str, email: str, *, reset: bool) -> tuple[Allowance, ...]:
    limit = Limit("mail", config.current().mail_tries, HOUR).of(account, email_key(email))
    return (limit,) if reset else (limit, _mailbox_limit(email))


def _mailbox_limit(email: str) -> Allowance:
    tries = config.current().mail_tries_per_mailbox
    return Limit("mail-mailbox", tries, HOUR).of(email_key(email))


def count_request(caller: Principal | None, address: str | None) -> None:
    """Count a request by caller, or by address if anonymous. Raises TooManyRequests.

    The setting `rate_limit` must not be `off`.
    """
    rate = config.current().rate_limit
    if caller is None or not caller.signed_in:
        rate_limits.consume(
            rate_limits.parse_rate("requests-address", rate).of(rate_limits.client_network(address))
        )
        return
    limit = rate_limits.parse_rate("requests", rate)
    home, user_id = caller.home_and_user()
    rate_limits.consume(limit.of(home.id, user_id, caller.api_key_id))


def check_sso_failures(address: str | None) -> None:
    """Raise TooManyRequests for an address with too many failed provider sign-ins."""
    if config.current().login_rate_limit != "off":
        rate_limits.check(_sso_limit(address))


def count_sso_start(address: str | None) -> None:
    """Count the start of a provider sign-in. Raises TooManyRequests."""
    _count_start("sso-start", address)


def count_discovery(address: str | None) -> None:
    """Count a search for the account of an email address. Raises TooManyRequests."""
    _count_start("discovery", address)


def _count_start(name: str, address: str | None) -> None:
    settings = config.current()
    if settings.login_rate_limit != "off":
        limit = Limit(name, settings.sign_in_starts_per_address, QUARTER_HOUR)
        rate_limits.consume(limit.of(rate_limits.client_network(address)))


def count_sso_failure(address: str | None) -> None:
    """Count a failed provider sign-in."""
    if config.current().login_rate_limit != "off":
        rate_limits.consume(_sso_limit(address))


def _sso_limit(address: str | None) -> Allowance:
    tries = config.current().login_tries_per_address
    return Limit("sso-address", tries, QUARTER_HOUR).of(rate_limits.client_network(address))
