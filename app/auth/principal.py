"""The caller of a request and the account it acts in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import lru_cache

import sqlalchemy as sa

from app import clock, rules
from app.accounts import sign_in_settings
from app.accounts.models import ADMIN, SYSTEM_ACCOUNT_ID, Account, AccountOrigin, User
from app.accounts.plans import stored as plans
from app.accounts.sign_in_settings import SERVICE_LIMITS, SessionLimits
from app.accounts.usage import quotas
from app.accounts.usage.quotas import Quotas
from app.auth import key_scopes
from app.context import tenancy
from app.context.actor import ActorKind
from app.db import db, versioned_cache
from app.db.versioned_cache import VersionCheck
from app.errors import BadRequest, Forbidden, NotFound, RecentSignInRequired, Unauthorized
from app.ids import first_id
from app.types import cached_property

ALL_ACCOUNTS = "*"
RECENT_SIGN_IN = timedelta(minutes=15)
NO_PASSWORDS = "API keys cannot set passwords."
# The address allows resetting the password.
NO_ADDRESSES = "API keys cannot change email addresses."
OTHER_ACCOUNT = "Your credential belongs to another account."
# An admin who can sign in would outlive the key.
NO_ADMINS = "API keys cannot create admins."
OTHERS_KEYS = "Only you can make API keys of your own: open this page yourself."
NOT_OF_SYSTEM = "Operator keys do not act in the system account."
NO_PII_CHANGES = "Operator keys do not change pii_access."
NO_PII_MEMBERS = "API keys cannot add members to pii_access."

NOBODY_ID = "00000000-0000-0000-0000-000000000001"  # no user has this id


@dataclass(frozen=True)
class AccountRef:
    """The cached identifiers, CORS origins, session lifetimes and terms of an account."""

    id: str
    slug: str
    account_code: str
    name: str
    version_check: VersionCheck
    cors_origins: tuple[str, ...] = ()
    frame_ancestors: tuple[str, ...] = ()
    """The origins whose pages may frame portals."""
    session_limits: SessionLimits = SERVICE_LIMITS
    quotas: Quotas = ()
    attributes: Mapping[str, object] = field(default_factory=dict, hash=False)
    plan: str | None = None
    flags: frozenset[str] = frozenset()

    def matches(self, reference: str) -> bool:
        """Whether this is the slug, code or id of the account."""
        return reference.lower() in (self.id, self.slug, self.account_code.lower())


@dataclass(frozen=True)
class Portal:
    """What a portal session opens, and where it leads back to."""

    pages: tuple[str, ...]
    return_url: str
    is_own: bool
    """Whether the user it acts as has opened it."""


@dataclass(frozen=True, eq=False)
class Principal:
    """A caller, acting in `account`; None means all accounts, which only superadmins may read."""

    account: AccountRef | None
    home: AccountRef | None = None
    user_id: str | None = None
    email: str | None = None
    name: str | None = None
    role: str | None = None
    is_service: bool = False
    """Whether the user is a service, or its API key."""
    console: bool = False
    """Whether the role opens the console."""
    groups: frozenset[str] = frozenset()
    user_check: VersionCheck | None = field(default=None, repr=False)
    min_token_id: str = field(default="", repr=False)
    """Access tokens with lower ids are revoked."""
    session_id: str | None = None
    mfa: bool = False
    """Whether the session has passed a second factor."""
    auth_time: float | None = None
    """Time of the last authentication, in seconds since the epoch."""
    session_ends_at: datetime | None = None
    """The end of the session unless it is used again."""
    api_key_id: str | None = None
    api_key_name: str | None = None
    key_expires_at: float | None = None
    """Expiry of the API key, in seconds since the epoch."""
    scopes: key_scopes.Scopes | None = None
    """The operations on collections that an API key is restricted to."""
    operator_scopes: frozenset[str] | None = None
    """The scopes of an operator key (docs/operator-keys.md); None for everybody else."""
    read_only: bool = False
    """Whether the caller is an API key that may only read."""
    key_check: VersionCheck | None = field(default=None, repr=False)
    attributes: Mapping[str, object] = field(default_factory=dict)
    """The values of the user's attributes; of the account's, `account` has them."""
    setup: frozenset[str] | None = None
    """The parts that the holder of a setup link may set up; None for everybody else."""
    portal: Portal | None = None
    """The portal that the caller acts in; None for everybody else."""

    @cached_property
    def signed_in(self) -> bool:
        """Whether the caller is not anonymous."""
        return self.user_id is not None

    @cached_property
    def is_superadmin(self) -> bool:
        """Whether the caller belongs to the system account, which is what makes a superadmin."""
        return self.home is not None and self.home.id == SYSTEM_ACCOUNT_ID

    @property
    def session_limits(self) -> SessionLimits:
        """The lifetimes of sessions in the caller's own account."""
        return self.home.session_limits if self.home else SERVICE_LIMITS

    @property
    def may_act_elsewhere(self) -> bool:
        """Whether the caller may act in other accounts; of API keys only an operator's may."""
        return self.is_superadmin and (self.api_key_id is None or self.is_operator_key)

    @property
    def is_operator_key(self) -> bool:
        """Whether the caller is an operator key."""
        return self.operator_scopes is not None

    @property
    def is_admin(self) -> bool:
        """Whether the caller is an admin of the account acted in."""
        return self.is_superadmin or self.role == ADMIN

    @cached_property
    def opens_console(self) -> bool:
        """Whether the caller may open the console: admins, and roles that say so."""
        return self.is_admin or self.console

    @cached_property
    def acts_as(self) -> tuple[ActorKind | None, str | None, str | None]:
        """What acts: `kind`, `id` and `name` of `Actor`."""
        if self.is_service:
            return ActorKind.SERVICE, None, None
        if self.key_check is not None:  # of an API key, or of a directory's token
            return ActorKind.API_KEY, self.api_key_id, self.api_key_name
        return ActorKind.OPERATOR if self.is_superadmin else None, None, None

    @cached_property
    def account_id(self) -> str | None:
        return self.account.id if self.account else None

    @cached_property
    def tenancy(self) -> tenancy.Scope:
        """The row-security scope of the caller's requests."""
        if self.is_superadmin or self.account is None:
            return tenancy.ALL_ACCOUNTS
        return self.account.id

    def has_scope_for(self, *operations: str) -> bool:
        """Whether the scopes of an API key include one of the operations; True without scopes."""
        return key_scopes.include_any(self.scopes, operations)

    @property
    def metered_account(self) -> AccountRef | None:
        """The account that the caller's requests count for: the caller's own."""
        return self.home or self.account

    def home_and_user(self) -> tuple[AccountRef, str]:
        """The account and id of the signed-in user. Raises Unauthorized."""
        if self.home is None or self.user_id is None:
            raise Unauthorized
        return self.home, self.user_id

    def require_user_id(self) -> str:
        """The id of the signed-in user. Raises Unauthorized."""
        return self.home_and_user()[1]

    def refuse_key(self, message: str) -> None:
        """Raise Forbidden for an API key."""
        if self.api_key_id is not None:
            raise Forbidden(message)

    def refuse_operator_key_in(self, account_id: str | None) -> None:
        """Raise Forbidden for an operator key in the system account."""
        if self.is_operator_key and account_id == SYSTEM_ACCOUNT_ID:
            raise Forbidden(NOT_OF_SYSTEM)

    def refuse_portal_of_another(self) -> None:
        """Raise Forbidden in a portal that somebody else has opened: keys are personal."""
        if self.portal is not None and not self.portal.is_own:
            raise Forbidden(OTHERS_KEYS)

    def require_recent_sign_in(self) -> None:
        """Raise RecentSignInRequired unless the user authenticated in the last 15 minutes.

        For what outlives a session or exceeds its rights. Raises Forbidden for API keys.
        """
        self.refuse_key("API keys cannot do this.")
        authenticated_at = self.auth_time or 0
        if clock.now().timestamp() - authenticated_at >= RECENT_SIGN_IN.total_seconds():
            raise RecentSignInRequired

    def require_account_id(self) -> str:
        """The id of the account acted in. Raises BadRequest for all accounts."""
        if self.account is None:
            raise BadRequest("Specify a single account: X-Account-ID: * is not allowed here.")
        return self.account.id

    @cached_property
    def version_checks(self) -> Sequence[VersionCheck]:
        """The row versions that this cached principal depends on."""
        accounts = (
            self.home and self.home.version_check,
            self.account and self.account.version_check,
        )
        all = (self.key_check, self.user_check, *accounts)
        return tuple(dict.fromkeys(version_check for version_check in all if version_check))

    def acting_in(self, account: AccountRef | None) -> Principal:
        """The caller, acting in another account."""
        return self if account is self.account else replace(self, account=account)


def rule_caller(caller: Principal) -> rules.Subject:
    """The caller as rules see it."""
    home = caller.home.id if caller.home else None
    account = caller.account
    return rules.Subject(
        caller.user_id,
        caller.email,
        caller.role,
        home,
        caller.groups,
        caller.is_superadmin,
        caller.mfa,
        caller.attributes,
        account.attributes if account else {},
        account.plan if account else None,
        account.flags if account else frozenset(),
    )


def as_caller(subject: rules.Subject, account_id: str | None) -> Principal:
    """The caller whom rules see so, perhaps a made-up one; None stands for all accounts."""
    home_id = SYSTEM_ACCOUNT_ID if subject.is_superadmin else subject.account_id
    home, account = (
        AccountRef(
            *(id, "", "", "", VersionCheck("accounts", (id,), 0)),
            attributes=subject.account_attributes,
            plan=subject.plan,
            flags=subject.flags,
        )
        if id is not None
        else None
        for id in (home_id, account_id)
    )
    return Principal(
        account,
        home,
        subject.id,
        subject.email,
        role=subject.role,
        groups=subject.groups,
        mfa=subject.mfa,
        attributes=subject.attributes,
    )


def for_user(account_id: str, user_id: str) -> Principal | None:
    """The principal of an active user of an active account, cached by version."""
    return versioned_cache.cache("principals").get(
        (account_id, user_id), lambda: _load_user(account_id, user_id)
    )


def for_user_verified(account_id: str, user_id: str) -> Principal | None:
    """Like `for_user`, but verified against the database, for callers without a checking query."""
    principal = for_user(account_id, user_id)
    if principal is None:
        return None
    try:
        versioned_cache.verify(principal.version_checks)
    except versioned_cache.Stale:
        with versioned_cache.reloading():
            return for_user(account_id, user_id)
    return principal


def for_user_in_account(account_id: str, user_id: str | None) -> Principal | None:
    """A user of the account or a superadmin, acting in it; None if they may not (any more)."""
    for home_id in (account_id, SYSTEM_ACCOUNT_ID) if user_id else ():
        with tenancy.across_accounts():
            principal = for_user_verified(home_id, user_id or "")
        if principal is not None:
            return principal if home_id == account_id else choose_account(principal, account_id)
    return None


def anonymous_admin(account_id: str) -> Principal | None:
    """An admin of the account who is no actual user; None if it is not active."""
    account = find_active_account(account_id)
    if account is None:
        return None
    return Principal(account=account, home=account, user_id=NOBODY_ID, role=ADMIN)


def find_active_account(reference: str) -> AccountRef | None:
    """The active account with this slug, code or id, cached by version."""
    return versioned_cache.cache("accounts").get(
        reference.lower(), lambda: _load_account(reference.lower())
    )


def reload_active_account(reference: str) -> AccountRef | None:
    """The active account with this slug, code or id, read from the database."""
    with versioned_cache.reloading():
        return find_active_account(reference)


def is_allowed_origin(origin: str) -> bool:
    """Whether any active account allows this CORS origin."""
    accounts = sa.select(AccountOrigin.account_id).where(AccountOrigin.origin == origin)
    query = accounts.join(Account, Account.id == AccountOrigin.account_id).where(Account.is_active)
    with tenancy.across_accounts():
        return db.session.scalar(query.limit(1)) is not None


@lru_cache
def anonymous(account: AccountRef) -> Principal:
    """The anonymous principal of an account."""
    return Principal(account)


def choose_account(caller: Principal, reference: str | None) -> Principal:
    """The caller acting in the referenced account. Raises Forbidden or NotFound."""
    if reference is None:
        return caller
    if caller.home and caller.home.matches(reference):
        caller.refuse_operator_key_in(caller.home.id)
        return caller
    if not caller.may_act_elsewhere:
        raise Forbidden(OTHER_ACCOUNT)
    if reference == ALL_ACCOUNTS:
        if caller.is_operator_key:
            raise BadRequest("An operator key acts in one account: name it.")
        return caller.acting_in(None)
    account = find_active_account(reference)
    if account is None:
        raise NotFound("There is no such account.")
    return caller.acting_in(account)


def account_filter(caller: Principal, reference: str | None) -> str | None:
    """The account id to filter a list by: of the reference, or the account acted in.

    None means all accounts. Raises Forbidden or NotFound.
    """
    if reference is None:
        return caller.account_id
    return choose_account(caller.acting_in(caller.home), reference).account_id


def _load_user(account_id: str, user_id: str) -> Principal | None:
    with tenancy.in_account(account_id):
        user = db.session.get(User, (account_id, user_id), populate_existing=True)
        if user is None or not user.is_active or not user.account.is_active:
            return None
        home = _ref(user.account)
        valid_from = user.tokens_valid_from
        return Principal(
            account=home,
            home=home,
            user_id=user.id,
            email=user.email or None,
            name=user.name,
            is_service=user.is_service,
            role=user.role.name,
            console=user.role.console,
            groups=frozenset(group.name for group in user.groups),
            user_check=VersionCheck("users", (account_id, user.id), user.version),
            min_token_id=first_id(valid_from) if valid_from else "",
            attributes=user.attributes,
        )


def in_new_account(operator: Principal, account: Account) -> Principal:
    """A superadmin acting in an account that the open transaction creates, as of now."""
    # Read past the cache: the account may never be committed.
    now = clock.now().timestamp()
    return replace(operator, account=_ref(account), auth_time=now)


MATCHES_REFERENCE = sa.or_(
    Account.slug == sa.bindparam("reference"),
    Account.id == sa.bindparam("reference"),
    Account.account_code == sa.bindparam("code"),
)
"""Matches accounts by slug, code or id, with the parameters of `reference_params`."""
_FIND_ACCOUNT = sa.select(Account).where(MATCHES_REFERENCE)


def reference_params(reference: str) -> dict[str, str]:
    """The parameters of `MATCHES_REFERENCE` for a slug, code or id."""
    reference = reference.strip().lower().replace("\0", "\ufffd")  # PostgreSQL rejects NUL
    return {"reference": reference, "code": reference.upper()}


def find_account(reference: str) -> Account | None:
    """The account with this slug, code or id, active or not."""
    return db.session.scalar(_FIND_ACCOUNT, reference_params(reference))


def _load_account(reference: str) -> AccountRef | None:
    options = {"populate_existing": True}
    account = db.session.scalar(
        _FIND_ACCOUNT, reference_params(reference), execution_options=options
    )
    return _ref(account) if account and account.is_active else None


def _ref(account: Account) -> AccountRef:
    version_check = VersionCheck("accounts", (account.id,), account.version)
    origins = tuple(account.settings.get("cors_origins", ()))
    ancestors = tuple(account.settings.get("frame_ancestors", ()))
    names = (account.id, account.slug, account.account_code, account.name)
    limits = sign_in_settings.session_limits(account.settings)
    plan = plans.of_account(account.plan)
    return AccountRef(
        *(*names, version_check, origins, ancestors, limits),
        quotas=quotas.of_account(account.id, account.settings, plan),
        attributes=account.attributes,
        plan=account.plan,
        flags=plans.flags(plan, account.flags),
    )
