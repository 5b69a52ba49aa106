"""Who guesses passwords, has mails sent, or asks too much is slowed down (contract section 3)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from app import config
from app.accounts.models import User
from app.accounts.service import email_key
from app.auth.principal import Principal, find_account
from app.errors import TooManyRequests, Unauthorized
from app.http import rate_limits
from app.http.rate_limits import Allowance, Limit

QUARTER_HOUR, HOUR = 900, 3600
NEW_ACCOUNT = ""


@contextmanager
def guesses(account: str, email: str, address: str | None) -> Iterator[None]:
    """Refuse guesses past the limits, right ones too, and count every one that fails.

    The account by its id, if there is one of that name.
    Raises TooManyRequests.
    """
    allowances = _of_guesses(account, email, rate_limits.client_network(address))
    rate_limits.check(*allowances)
    try:
        yield
    except Unauthorized as error:
        settle(allowances, right=error.error != "authentication_failed")
        raise
    settle(allowances, right=True)


def settle(allowances: Sequence[Allowance], *, right: bool) -> None:
    """Decide on a guess once the password was looked at. Raises TooManyRequests.

    Guesses made at once all came in before any was counted: only as many as the limit allows learn
    whether they were wrong, and once those are counted a right one is refused like the others.
    """
    rate_limits.check(*allowances)
    if not right:
        rate_limits.consume(*allowances)


def _of_guesses(account: str, email: str, origin: str) -> tuple[Allowance, ...]:
    settings = config.current()
    if settings.login_rate_limit == "off":
        return ()
    who = (account.strip().lower(), email_key(email))
    return (
        Limit("login", settings.login_tries, QUARTER_HOUR).of(*who, origin),
        Limit("login-address", settings.login_tries_per_address, QUARTER_HOUR).of(origin),
        Limit("login-user", settings.login_tries_per_user, QUARTER_HOUR).of(*who),
    )


def own_password(user: User) -> tuple[Allowance, ...]:
    """How often somebody with a user's token may get that user's password wrong."""
    settings = config.current()
    if settings.login_rate_limit == "off":
        return ()
    limit = Limit("own-password", settings.login_tries, QUARTER_HOUR)
    return (limit.of(user.account_id, user.id),)


def mails(account: str, email: str, address: str | None, *, reset: bool = False) -> None:
    """Count a request that has a mail sent. Raises TooManyRequests past the limits.

    The account by its slug, code or id; NEW_ACCOUNT where there is none yet. A link to set a
    password (`reset`) is not kept back by what other accounts have sent.
    """
    if config.current().login_rate_limit == "off":
        return
    known = find_account(account) if account else None
    where = known.id if known else account.strip().lower()
    tries = config.current().mail_tries_per_address
    allowances = (
        *_of_mailbox(where, email, reset=reset),
        Limit("mail-address", tries, HOUR).of(rate_limits.client_network(address)),
    )
    rate_limits.check(*allowances)
    rate_limits.consume(*allowances)


def mailbox(account_id: str, email: str, *, reset: bool = False) -> None:
    """Count a mail that somebody who has signed in has sent. Raises TooManyRequests."""
    if config.current().login_rate_limit != "off":
        rate_limits.consume(*_of_mailbox(account_id, email, reset=reset))


def takes_unproved(email: str) -> bool:
    """Count a reset for a mailbox that its user has not proved; whether it may still be sent.

    Else whoever makes users under a stranger's address in many accounts would flood it.
    """
    try:
        if config.current().login_rate_limit != "off":
            rate_limits.consume(_of_all_accounts(email))
    except TooManyRequests:
        return False
    return True


def _of_mailbox(account: str, email: str, *, reset: bool) -> tuple[Allowance, ...]:
    one = Limit("mail", config.current().mail_tries, HOUR).of(account, email_key(email))
    return (one,) if reset else (one, _of_all_accounts(email))


def _of_all_accounts(email: str) -> Allowance:
    tries = config.current().mail_tries_per_mailbox
    return Limit("mail-mailbox", tries, HOUR).of(email_key(email))


def requests(caller: Principal | None, address: str | None) -> None:
    """Count a request of a caller, else of an address. Raises TooManyRequests past the limit."""
    rate = config.current().rate_limit
    if rate == "off":
        return
    if caller is None or not caller.signed_in:
        rate_limits.consume(
            rate_limits.parse_rate("requests-address", rate).of(rate_limits.client_network(address))
        )
        return
    limit = rate_limits.parse_rate("requests", rate)
    home, user_id = caller.home_and_user()
    rate_limits.consume(limit.of(home.id, user_id, caller.api_key_id))


def sign_ins(address: str | None) -> None:
    """Refuse an address whose sign-ins by providers were refused too often. Raises 429."""
    if config.current().login_rate_limit != "off":
        rate_limits.check(_of_sign_ins(address))


def started_sign_in(address: str | None) -> None:
    """Count a sign-in by a provider that an address starts. Raises TooManyRequests."""
    settings = config.current()
    if settings.login_rate_limit != "off":
        tries = settings.sign_in_starts_per_address
        rate_limits.consume(
            Limit("sso-start", tries, QUARTER_HOUR).of(rate_limits.client_network(address))
        )


def refused_sign_in(address: str | None) -> None:
    """Count a sign-in by a provider that was refused."""
    if config.current().login_rate_limit != "off":
        rate_limits.consume(_of_sign_ins(address))


def _of_sign_ins(address: str | None) -> Allowance:
    tries = config.current().login_tries_per_address
    return Limit("sso-address", tries, QUARTER_HOUR).of(rate_limits.client_network(address))
