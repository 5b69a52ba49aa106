"""Users as they sign in: what is to be checked and told of them, read at once without the ORM.

Next to one Argon2 verification, its objects would be the dearest part of a sign-in.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import NamedTuple

import sqlalchemy as sa

from app.accounts import service as accounts
from app.auth import principal as principals
from app.db import Base
from app.db.prepared import PreparedStatement


class Home(NamedTuple):
    """The account of a member."""

    id: str
    slug: str
    name: str
    account_code: str
    is_active: bool
    created_at: datetime


class Held(NamedTuple):
    """The role of a member."""

    name: str


@dataclass
class Member:
    """A user of an account, as a `User` shows itself to answers."""

    account: Home
    role: Held
    group_names: list[str]
    account_id: str
    id: str
    email: str
    name: str | None
    password_hash: str | None = field(repr=False)
    role_id: int
    is_active: bool
    email_verified: bool
    email_verified_at: datetime | None
    auth_provider: str
    created_at: datetime
    updated_at: datetime
    last_login: datetime | None
    tokens_valid_from: datetime | None

    @property
    def may_sign_in(self) -> bool:
        """Whether the user and the account are active."""
        return self.is_active and self.account.is_active

    @property
    def role_name(self) -> str:
        """The name of the role."""
        return self.role.name


class Found(NamedTuple):
    """What an account and an address led to."""

    account_id: str | None
    member: Member | None


_OWN = tuple(one.name for one in fields(Member))[3:]
_USERS, _ROLES, _ACCOUNTS, _GROUPS, _IN = (
    Base.metadata.tables[name] for name in ("users", "roles", "accounts", "groups", "group_members")
)
_MINE = (_USERS.c.account_id == _ACCOUNTS.c.id, _USERS.c.email_key == sa.bindparam("email_key"))
_ITS_GROUPS = (_IN.c.account_id == _USERS.c.account_id, _IN.c.user_id == _USERS.c.id)
_GROUP = (_GROUPS.c.account_id == _IN.c.account_id, _GROUPS.c.id == _IN.c.group_id)
# A row for each group, or one. Known and unknown users take the same statement.
_MEMBER = PreparedStatement(
    sa.select(*(_ACCOUNTS.c[name] for name in Home._fields), _ROLES.c.name, _GROUPS.c.name)
    .add_columns(*(_USERS.c[name] for name in _OWN))
    .select_from(_ACCOUNTS)
    .outerjoin(_USERS, sa.and_(*_MINE))
    .outerjoin(_ROLES, _ROLES.c.id == _USERS.c.role_id)
    .outerjoin(_IN, sa.and_(*_ITS_GROUPS))
    .outerjoin(_GROUPS, sa.and_(*_GROUP))
    .where(principals.IS_NAMED)
    .order_by(_GROUPS.c.name),
    keyed=True,
)
_ROLE = len(Home._fields)


def find(account: str, email: str) -> Found:
    """The account (slug, code or id), and its user with that address."""
    given = {**principals.naming(account), "email_key": accounts.email_key(email)}
    rows = _MEMBER.all(given)
    if not rows:
        return Found(None, None)
    home = Home._make(rows[0][:_ROLE])
    role, _, *own = rows[0][_ROLE:]
    groups = [row[_ROLE + 1] for row in rows if row[_ROLE + 1] is not None]
    member = Member(home, Held(role), groups, *own) if role else None
    return Found(home.id, member)
