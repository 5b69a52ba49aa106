"""Rate limits for password guesses, mails, sign-ins and requests."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from app import config, crypto, events
from app.accounts.models import SYSTEM_ACCOUNT_ID, User
from app.accounts.service import email_key
from app.auth import devices, stranger_mails
from app.auth.principal import Principal, find_account
from app.errors import TooManyRequests, Unauthorized
from app.web import rate_limits
from app.web.rate_limits import Allowance, Limit

QUARTER_HOUR, HOUR, DAY = 900, 3600, 86_400
SECOND_FACTOR_TRIES_PER_DAY = 50  # at any time, three of a million codes are valid
NEW_ACCOUNT = ""
SLOWED_TRIES = 3
"""Wrong passwords of one network for a user who has had `login_tries_per_user`."""
SLOWED_FACTOR = 10
"""All networks may fail so many times `login_tries_per_user` for one user, known devices apart."""


@contextmanager
def limit_guesses(
    account: str, email: str, address: str | None, device: str | None = None
) -> Iterator[None]:
    """Count failed password checks inside the block, and refuse all checks past the limits.

    `account` is the account's id, or the name that was given for an unknown account; `device` is
    the id of a device where the user has signed in. Raises TooManyRequests.
    """
    allowances = _check_guess(account, email, address, device)
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


def forget_guesses(account_id: str, email: str) -> None:
    """Forget the failures of a user who has a new password, from wherever they came."""
    for allowance in _limits_of_user(account_id, email):
        rate_limits.take(allowance)


def _check_guess(
    account: str, email: str, address: str | None, device: str | None
) -> tuple[Allowance, ...]:
    """The limits that a guess counts for. Raises TooManyRequests if one of them is used up.

    Strangers who know an address must not lock its user out. So a known device has tries of its
    own, and past the tries of a user, each other network still has a few.
    """
    settings = config.current()
    if settings.login_rate_limit == "off":
        return ()
    user = (account.strip().lower(), email_key(email))
    if device is not None:
        own = (Limit("login-device", settings.login_tries, QUARTER_HOUR).of(*user, device),)
        rate_limits.check(*own)
        return own
    network = rate_limits.client_network(address)
    of_network = (
        Limit("login", settings.login_tries, QUARTER_HOUR).of(*user, network),
        Limit("login-address", settings.login_tries_per_address, QUARTER_HOUR).of(network),
    )
    of_user, most = _limits_of_user(account, email)
    slowed = Limit("login-slowed", SLOWED_TRIES, QUARTER_HOUR)
    try:
        rate_limits.check(*of_network, of_user)
    except TooManyRequests:
        few = slowed.of(*user, rate_limits.wide_network(address))
        rate_limits.check(*of_network, few, most)
        return (*of_network, few, most)
    return (*of_network, of_user)


def _limits_of_user(account: str, email: str) -> tuple[Allowance, Allowance]:
    """The limits on a user's failures from unknown devices: before they are slowed, and while."""
    tries, user = config.current().login_tries_per_user, (account.strip().lower(), email_key(email))
    return (
        Limit("login-user", tries, QUARTER_HOUR).of(*user),
        Limit("login-user-slowed", (SLOWED_FACTOR - 1) * tries, QUARTER_HOUR).of(*user),
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


def second_factor_limits(user: User, purpose: str = "") -> tuple[Allowance, ...]:
    """The limits on wrong second factors of a user.

    With a purpose, of its own: whoever tries there does not lock the user out elsewhere.
    """
    settings = config.current()
    key = (user.account_id, user.id, purpose) if purpose else (user.account_id, user.id)
    if settings.login_rate_limit == "off":
        return ()
    return (
        Limit("second-factor", settings.login_tries, QUARTER_HOUR).of(*key),
        Limit("second-factor-day", SECOND_FACTOR_TRIES_PER_DAY, DAY).of(*key),
    )


def count_mail_request(
    account: str, email: str, address: str | None, device: str = "", *, reset: bool = False
) -> str:
    """Count an anonymous request that sends a mail; returns who asked, for `mail_tokens`.

    `account` is a slug, code or id, or NEW_ACCOUNT; `device` the cookie of a device. Links that let
    a user in (`reset`) are counted by themselves. Raises TooManyRequests past the limits.
    """
    row = find_account(account) if account else None
    account_id = row.id if row else account.strip().lower()
    known = devices.known_id_by_email(device, account_id, email)
    network, tries = rate_limits.client_network(address), config.current().mail_tries
    if config.current().login_rate_limit != "off":
        if known is not None:
            own = Limit("mail-known-device", tries, HOUR)
            rate_limits.consume(own.of(account_id, email_key(email), known))
        else:
            per_address = config.current().mail_tries_per_address
            of_network = Limit("mail-address", per_address, HOUR).of(network)
            wide, kind = rate_limits.wide_network(address), "mail-reset" if reset else "mail"
            limits = _mail_limits(kind, account_id, email, network, wide)
            rate_limits.consume(of_network, *limits.choose())
    return next(crypto.fingerprints((known or network).encode(), "asked for a mail"))


def count_mail(account_id: str, email: str, *, verified: bool = False) -> None:
    """Count a mail that a signed-in user triggers. Raises TooManyRequests or QuotaExceeded."""
    if not verified:
        stranger_mails.count(account_id)
    if config.current().login_rate_limit != "off":
        limits = _user_mail_limits(account_id, email)
        # The owner of a verified mailbox has agreed to the mails of this account.
        rate_limits.consume(*(limits[:1] if verified else limits.choose()))


def count_own_address(account_id: str, user_id: str, email: str) -> None:
    """Count a mail to a user's own new address. Raises TooManyRequests.

    Not for the account: one member must not use up the mails of all.
    """
    if config.current().login_rate_limit != "off":
        own = Limit("mail-own-address", config.current().mail_tries, DAY).of(account_id, user_id)
        rate_limits.consume(own, *_user_mail_limits(account_id, email).choose())


def beyond_mail_limit(account_id: str, emails: Sequence[str]) -> list[str]:
    """The addresses that a signed-in user may not have mailed now; counts nothing."""
    if config.current().login_rate_limit == "off":
        return []
    limits = {email: _user_mail_limits(account_id, email) for email in emails}
    if _are_left(*itertools.chain(*(one[:-1] for one in limits.values()))):
        return []  # mostly, with one query for all
    return [email for email, one in limits.items() if not _are_left(*one.choose())]


def _are_left(*allowances: Allowance) -> bool:
    try:
        rate_limits.check(*allowances)
    except TooManyRequests:
        return False
    return True


class _MailLimits(NamedTuple):
    """The limits that a mail counts for. A source is a network or an account."""

    of_source: Allowance
    of_mailbox: Allowance
    of_day: Allowance
    slowed: Allowance

    def choose(self) -> tuple[Allowance, ...]:
        """The limits of the next mail.

        Who knows an address must not use up its mails. So past those of an hour, each other source
        has one more an hour, until the mailbox has twice as many in a day.
        """
        try:
            rate_limits.check(self.of_mailbox)
        except TooManyRequests:
            return self.of_source, self.slowed, self.of_day
        return self.of_source, self.of_mailbox, self.of_day


def _mail_limits(kind: str, account_id: str, email: str, source: str, wide: str) -> _MailLimits:
    settings, mailbox = config.current(), email_key(email)
    per_mailbox = settings.mail_tries_per_mailbox
    return _MailLimits(
        Limit(kind, settings.mail_tries, HOUR).of(account_id, mailbox, source),
        Limit(f"{kind}-mailbox", per_mailbox, HOUR).of(mailbox),
        Limit(f"{kind}-mailbox-day", 2 * per_mailbox, DAY).of(mailbox),
        Limit(f"{kind}-slowed", 1, HOUR).of(mailbox, wide),
    )


def _user_mail_limits(account_id: str, email: str) -> _MailLimits:
    return _mail_limits("mail-user", account_id, email, account_id, account_id)


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


def count_named_page(address: str | None) -> None:
    """Count a page that tells the name of an account. Raises TooManyRequests."""
    _count_start("named-page", address)


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
