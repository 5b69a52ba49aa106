"""Who a request comes from, and the account it acts in (contract section 1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cached_property, lru_cache
from typing import Any

import sqlalchemy as sa

from app import clock
from app.accounts.models import ADMIN, SYSTEM_ACCOUNT_ID, Account, AccountOrigin, User
from app.context import tenancy
from app.db import db, versioned_cache
from app.db.versioned_cache import VersionCheck
from app.errors import BadRequest, Forbidden, NotFound, RecentSignInRequired, Unauthorized
from app.ids import first_id

ALL_ACCOUNTS = "*"
RECENT_SIGN_IN = timedelta(minutes=15)
NO_PASSWORDS = "An API key cannot set passwords."
# Whoever has the address can set the password.
NO_ADDRESSES = "An API key cannot change addresses."
# An admin who can sign in would outlive the key.
ELSEWHERE = "Your credential belongs to another account."
NO_ADMINS = "An API key cannot make admins."
NO_PII_MEMBERS = "An API key cannot let anybody into pii_access."

NOBODY_ID = "00000000-0000-0000-0000-000000000001"  # that no user has


@dataclass(frozen=True)
class AccountRef:
    """An account as others name it."""

    id: str
    slug: str
    account_code: str
    name: str
    version_check: VersionCheck
    cors_origins: tuple[str, ...] = ()

    def is_named(self, reference: str) -> bool:
        """Whether a slug, code or id means this account."""
        return reference.lower() in (self.id, self.slug, self.account_code.lower())


@dataclass(frozen=True, eq=False)
class Principal:
    """A caller. `account` is the one acted in: None means all, which only superadmins may read."""

    account: AccountRef | None
    home: AccountRef | None = None
    user_id: str | None = None
    email: str | None = None
    name: str | None = None
    role: str | None = None
    groups: frozenset[str] = frozenset()
    user_check: VersionCheck | None = field(default=None, repr=False)
    first_token: str = field(default="", repr=False)
    """What the ids of access tokens that the user may still show come after."""
    session_id: str | None = None
    auth_time: float | None = None
    """When somebody last proved to be the user, in seconds since the epoch."""
    api_key_id: str | None = None
    scopes: Mapping[str, Any] | None = None
    """Where the caller is an API key made for some collections and operations only."""
    key_check: VersionCheck | None = field(default=None, repr=False)

    @property
    def signed_in(self) -> bool:
        """Whether somebody has signed in."""
        return self.user_id is not None

    @property
    def is_superadmin(self) -> bool:
        """Whether the caller belongs to the system account; nothing else makes a superadmin."""
        return self.home is not None and self.home.id == SYSTEM_ACCOUNT_ID

    @property
    def may_act_elsewhere(self) -> bool:
        """Whether the caller may name another account; an API key acts in its own alone."""
        return self.is_superadmin and self.api_key_id is None

    @property
    def is_admin(self) -> bool:
        """Whether the caller administers the account acted in."""
        return self.is_superadmin or self.role == ADMIN

    @property
    def account_id(self) -> str | None:
        """The id of the account acted in."""
        return self.account.id if self.account else None

    @property
    def tenancy(self) -> tenancy.Scope:
        """Whose rows the caller's requests are about."""
        if self.is_superadmin or self.account is None:
            return tenancy.ACROSS
        return self.account.id

    def home_and_user(self) -> tuple[AccountRef, str]:
        """The own account and the id of a signed-in caller. Raises Unauthorized."""
        if self.home is None or self.user_id is None:
            raise Unauthorized
        return self.home, self.user_id

    def refuse_key(self, message: str) -> None:
        """Raise Forbidden for an API key."""
        if self.api_key_id is not None:
            raise Forbidden(message)

    def require_recent_sign_in(self) -> None:
        """Raise RecentSignInRequired unless somebody proved to be the user a moment ago.

        For what outlives a session, or opens what the session does not. An API key never may.
        """
        self.refuse_key("An API key cannot do this.")
        proved = self.auth_time or 0
        if clock.now().timestamp() - proved >= RECENT_SIGN_IN.total_seconds():
            raise RecentSignInRequired

    def one_account(self) -> str:
        """The id of the one account acted in. Raises BadRequest where it is all of them."""
        if self.account is None:
            raise BadRequest("Name one account: X-Account-ID: * names none to act in.")
        return self.account.id

    @cached_property
    def version_checks(self) -> Sequence[VersionCheck]:
        """What must be unchanged for this to be still true."""
        accounts = (
            self.home and self.home.version_check,
            self.account and self.account.version_check,
        )
        found = (self.key_check, self.user_check, *accounts)
        return tuple(dict.fromkeys(version_check for version_check in found if version_check))

    def acting_in(self, account: AccountRef | None) -> Principal:
        """The same caller, acting in another account."""
        return replace(self, account=account)


def of_user(account_id: str, user_id: str) -> Principal | None:
    """The principal of an active user of an active account, cached under its version."""
    known = versioned_cache.cache("principals")
    return known.get((account_id, user_id), lambda: _load(account_id, user_id))


def of_user_now(account_id: str, user_id: str) -> Principal | None:
    """The same for what has no statement of its own to check what is cached: it is checked here."""
    found = of_user(account_id, user_id)
    if found is None:
        return None
    try:
        versioned_cache.verify(found.version_checks)
    except versioned_cache.Stale:
        with versioned_cache.reloading():
            return of_user(account_id, user_id)
    return found


def acting_now(account_id: str, user_id: str | None) -> Principal | None:
    """A user of the account, or a superadmin, acting in it now; None where they may not."""
    for home in (account_id, SYSTEM_ACCOUNT_ID) if user_id else ():
        with tenancy.across_accounts():
            found = of_user_now(home, user_id or "")
        if found is not None:
            return found if home == account_id else choose_account(found, account_id)
    return None


def any_admin_of(account_id: str) -> Principal | None:
    """What every admin of an account may do, in nobody's name; None of one that is not active."""
    account = account_named(account_id)
    if account is None:
        return None
    return Principal(account=account, home=account, user_id=NOBODY_ID, role=ADMIN)


def account_named(reference: str) -> AccountRef | None:
    """The active account that a slug, code or id names, cached under its version."""
    return versioned_cache.cache("accounts").get(
        reference.lower(), lambda: _find(reference.lower())
    )


def account_as_it_is(reference: str) -> AccountRef | None:
    """The active account that a slug, code or id names, read anew."""
    with versioned_cache.reloading():
        return account_named(reference)


def is_origin_of_any(origin: str) -> bool:
    """Whether some account lists this origin for its browser applications."""
    listed = sa.select(AccountOrigin.account_id).where(AccountOrigin.origin == origin)
    joined = listed.join(Account, Account.id == AccountOrigin.account_id).where(Account.is_active)
    with tenancy.across_accounts():
        return db.session.scalar(joined.limit(1)) is not None


@lru_cache
def anonymous(account: AccountRef) -> Principal:
    """Nobody in particular, in an account."""
    return Principal(account)


def choose_account(caller: Principal, reference: str | None) -> Principal:
    """Let the caller act in the account that it names. Raises Forbidden or NotFound."""
    if reference is None or (caller.home and caller.home.is_named(reference)):
        return caller
    if not caller.may_act_elsewhere:
        raise Forbidden(ELSEWHERE)
    if reference == ALL_ACCOUNTS:
        return caller.acting_in(None)
    account = account_named(reference)
    if account is None:
        raise NotFound("There is no such account.")
    return caller.acting_in(account)


def account_to_list(caller: Principal, named: str | None) -> str | None:
    """The id of the account of a list: the one that is named, as by X-Account-ID, or acted in.

    None stands for all. Raises Forbidden or NotFound.
    """
    if named is None:
        return caller.account_id
    return choose_account(caller.acting_in(caller.home), named).account_id


def _load(account_id: str, user_id: str) -> Principal | None:
    with tenancy.in_account(account_id):
        user = db.session.get(User, (account_id, user_id), populate_existing=True)
        return _principal_of(account_id, user)


def _principal_of(account_id: str, user: User | None) -> Principal | None:
    if user is None or not user.is_active or not user.account.is_active:
        return None
    home = _ref(user.account)
    begin = user.tokens_valid_from
    return Principal(
        account=home,
        home=home,
        user_id=user.id,
        email=user.email,
        name=user.name,
        role=user.role.name,
        groups=frozenset(group.name for group in user.groups),
        user_check=VersionCheck("users", (account_id, user.id), user.version),
        first_token=first_id(begin) if begin else "",
    )


IS_NAMED = sa.or_(
    Account.slug == sa.bindparam("reference"),
    Account.id == sa.bindparam("reference"),
    Account.account_code == sa.bindparam("code"),
)
"""Which account it is, of the parameters of `naming`."""
_NAMED = sa.select(Account).where(IS_NAMED)


def naming(reference: str) -> dict[str, str]:
    """What `IS_NAMED` is to compare with a slug, code or id."""
    reference = reference.strip().lower().replace("\0", "\ufffd")  # PostgreSQL takes no NUL
    return {"reference": reference, "code": reference.upper()}


def find_account(reference: str) -> Account | None:
    """The account with that slug, code or id, active or not."""
    return db.session.scalar(_NAMED, naming(reference))


def _find(reference: str) -> AccountRef | None:
    anew = {"populate_existing": True}
    account = db.session.scalar(_NAMED, naming(reference), execution_options=anew)
    return _ref(account) if account and account.is_active else None


def _ref(account: Account) -> AccountRef:
    version_check = VersionCheck("accounts", (account.id,), account.version)
    origins = tuple(account.settings.get("cors_origins", ()))
    named = (account.id, account.slug, account.account_code, account.name)
    return AccountRef(*named, version_check, origins)
