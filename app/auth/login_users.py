"""The user who signs in, with account, role and groups, in two prepared queries.

Without the ORM: after the Argon2 verification, its objects would be the costliest part of a login.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from dataclasses import field as column
from datetime import datetime
from typing import NamedTuple

import sqlalchemy as sa

from app.accounts import service as accounts
from app.accounts.domains import service
from app.accounts.domains.models import AccountDomain
from app.accounts.models import UserKind
from app.auth import principal as principals
from app.auth.mfa.models import SecondFactor
from app.db import Base
from app.db.prepared import PreparedStatement
from app.types import JSONObject


class AccountRow(NamedTuple):
    id: str
    slug: str
    name: str
    account_code: str
    is_active: bool
    created_at: datetime
    settings: JSONObject


class RoleRow(NamedTuple):
    name: str


@dataclass
class LoginUser:
    """A user with the attributes of `User` that responses need."""

    account: AccountRow
    role: RoleRow
    group_names: list[str]
    account_id: str
    id: str
    email: str
    name: str | None
    password_hash: str | None = column(repr=False)
    role_id: int
    is_active: bool
    email_verified: bool
    email_verified_at: datetime | None
    auth_provider: str
    created_at: datetime
    updated_at: datetime
    last_login: datetime | None
    tokens_valid_from: datetime | None
    language: str | None
    attributes: JSONObject
    kind: str
    has_second_factor: bool
    sso_only: bool
    """Whether the account lets addresses of this domain sign in with a provider only."""

    @property
    def is_service(self) -> bool:
        return self.kind == UserKind.SERVICE

    @property
    def may_sign_in(self) -> bool:
        """Whether the user is a person, and active as the account is."""
        return self.is_active and self.account.is_active and not self.is_service

    @property
    def role_name(self) -> str:
        return self.role.name


class LoginLookup(NamedTuple):
    """The result of a look-up by account and email address."""

    account_id: str | None
    user: LoginUser | None


_NOT_COLUMNS = {"account", "role", "group_names", "has_second_factor", "sso_only"}
_USER_COLUMNS = [field.name for field in fields(LoginUser) if field.name not in _NOT_COLUMNS]
_USERS, _ROLES, _ACCOUNTS, _GROUPS, _MEMBERS = (
    Base.metadata.tables[name] for name in ("users", "roles", "accounts", "groups", "group_members")
)
_FACTORS = SecondFactor.__table__
_ACCOUNT_ID = sa.bindparam("account_id", type_=_USERS.c.account_id.type)
_HAS_FACTOR = sa.exists().where(
    _FACTORS.c.account_id == _USERS.c.account_id,
    _FACTORS.c.user_id == _USERS.c.id,
    _FACTORS.c.confirmed_at.is_not(None),
)
_DOMAINS = AccountDomain.__table__
_SSO_ONLY = sa.exists().where(
    _DOMAINS.c.account_id == _USERS.c.account_id,
    _DOMAINS.c.domain == sa.bindparam("domain"),
    _DOMAINS.c.verified_at.is_not(None),
    _DOMAINS.c.sso_only,
)
_MEMBER_JOIN = (_MEMBERS.c.account_id == _USERS.c.account_id, _MEMBERS.c.user_id == _USERS.c.id)
_GROUP_JOIN = (_GROUPS.c.account_id == _MEMBERS.c.account_id, _GROUPS.c.id == _MEMBERS.c.group_id)
_ACCOUNT = PreparedStatement(
    sa.select(*(_ACCOUNTS.c[name] for name in AccountRow._fields)).where(
        principals.MATCHES_REFERENCE
    ),
    keyed=True,
)
# Within one account, as users are sharded by it. One row per group, or one.
_LOGIN_USER = PreparedStatement(
    sa.select(_ROLES.c.name, _GROUPS.c.name)
    .add_columns(*(_USERS.c[name] for name in _USER_COLUMNS), _HAS_FACTOR, _SSO_ONLY)
    .select_from(_USERS)
    .join(_ROLES, _ROLES.c.id == _USERS.c.role_id)
    .outerjoin(_MEMBERS, sa.and_(*_MEMBER_JOIN))
    .outerjoin(_GROUPS, sa.and_(*_GROUP_JOIN))
    .where(_USERS.c.account_id == _ACCOUNT_ID, _USERS.c.email_key == sa.bindparam("email_key"))
    .order_by(_GROUPS.c.name),
    keyed=True,
)
_NO_ACCOUNT = ""


def find(account: str, email: str) -> LoginLookup:
    """Look up an account (slug, code or id) and its user with this email address."""
    # Known and unknown accounts and users take the same statements and time.
    found = _ACCOUNT.all(principals.reference_params(account))
    account_row = AccountRow._make(found[0]) if found else None
    account_id = account_row.id if account_row else _NO_ACCOUNT
    key, domain = accounts.email_key(email), service.of_address(email)
    rows = _LOGIN_USER.all({"account_id": account_id, "email_key": key, "domain": domain})
    if account_row is None:
        return LoginLookup(None, None)
    if not rows:
        return LoginLookup(account_id, None)
    groups = [row[1] for row in rows if row[1] is not None]
    role, _, *columns = rows[0]
    return LoginLookup(account_id, LoginUser(account_row, RoleRow(role), groups, *columns))
