"""Account, User, Role, Group.

In tenant tables `account_id` leads every key; `accounts` and `roles` are shared by all tenants.
`version` grows with every change that invalidates cached principals (`app.db.versioned_cache`).
"""

from __future__ import annotations

import unicodedata
from datetime import datetime
from enum import StrEnum

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column, relationship, validates

from app import clock
from app.db import Base
from app.db.policy import Audited, Bundled, NotAudited, NotBundled, Noun, Placement, TablePolicy
from app.db.types import Id, Json, Text, UtcDateTime, created_at_default
from app.ids import NIL, new_id
from app.types import JSONObject
from app.web.languages import lazy_gettext

SYSTEM_ACCOUNT_ID = NIL
SYSTEM_CODE = "SY0000"
PII_GROUP = "pii_access"
ADMIN, EDITOR, VIEWER = "admin", "editor", "viewer"


class UserKind(StrEnum):
    """What a user is; one of a service has neither an address nor a sign-in."""

    PERSON = "person"
    SERVICE = "service"


def name_key(name: str) -> str:
    """The key that role and group names are unique by: no case, width or invisible characters."""
    visible = "".join(c for c in name if unicodedata.category(c) != "Cf")
    return unicodedata.normalize("NFKC", visible).casefold()


class Named:
    """The columns of roles and groups that go with their name."""

    # Sorted behind the columns of the table itself: the audit log lists columns in their order.
    name_key: Mapped[str] = mapped_column(Text, sort_order=1)
    description: Mapped[str | None] = mapped_column(Text, sort_order=1)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=clock.now, sort_order=1)
    updated_at: Mapped[datetime] = mapped_column(
        UtcDateTime, default=created_at_default, onupdate=clock.now, sort_order=1
    )

    @validates("name")
    def _set_name_key(self, attribute: str, name: str) -> str:
        self.name_key = name_key(name)
        return name


class Account(Base):
    __tablename__ = "accounts"
    __policy__ = TablePolicy(
        audit=Audited(chain="id"),
        bundle=NotBundled("the account itself, which has a line of its own"),
        placement=Placement.SHARED,
        noun=Noun(
            lazy_gettext("Account"),
            lazy_gettext("Account settings"),
            named_by="name",
            order=190,
            page="console.show_settings",
            event="account",
        ),
        id_names=("account_id",),
    )

    id: Mapped[str] = mapped_column(Id, primary_key=True, default=new_id)
    account_code: Mapped[str] = mapped_column(Text, unique=True)
    slug: Mapped[str] = mapped_column(Text, unique=True)
    name: Mapped[str] = mapped_column(Text)
    is_active: Mapped[bool] = mapped_column(default=True)
    closed_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    settings: Mapped[JSONObject] = mapped_column(sa.JSON, default=dict)
    may_brand: Mapped[bool | None]  # null: as the product says for all accounts
    attributes: Mapped[JSONObject] = mapped_column(
        Json, default=dict, server_default="{}", sort_order=1
    )
    plan: Mapped[str | None] = mapped_column(Text, sort_order=1)
    flags: Mapped[JSONObject] = mapped_column(Json, default=dict, server_default="{}", sort_order=1)
    """Given (true) or taken (false) beside the plan; own quotas are in the settings."""
    template: Mapped[str | None] = mapped_column(Text, sort_order=1)
    """The template that filled it, in this version."""
    template_version: Mapped[int | None] = mapped_column(sort_order=1)
    version: Mapped[int] = mapped_column(default=1)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=clock.now)
    updated_at: Mapped[datetime] = mapped_column(
        UtcDateTime, default=created_at_default, onupdate=clock.now
    )


class AccountOrigin(Base):
    """A CORS origin of an account: a copy of its settings, indexed by origin."""

    __tablename__ = "account_origins"
    __table_args__ = (
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"]),
        sa.Index("ix_account_origins_origin", "origin"),
    )
    __policy__ = TablePolicy(
        audit=NotAudited("an index of the settings of accounts"),
        bundle=Bundled(order=10),
    )

    account_id: Mapped[str] = mapped_column(Id, primary_key=True)
    origin: Mapped[str] = mapped_column(Text, primary_key=True)


class AccountCodeCounter(Base):
    """One row with the number of allocated account codes. Its row lock serializes registrations."""

    __tablename__ = "account_code_counter"
    __policy__ = TablePolicy(
        audit=NotAudited("a counter; the account's entries contain its code"),
        bundle=NotBundled("shared by all accounts"),
        placement=Placement.SHARED,
    )

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    given_out: Mapped[int] = mapped_column(default=0)


class Role(Named, Base):
    """The role of a user; shared by all accounts."""

    __tablename__ = "roles"
    __table_args__ = (sa.Index("uq_roles_name_key", "name_key", unique=True),)
    __policy__ = TablePolicy(
        audit=Audited(chain=None, ignored=("name_key",)),
        bundle=NotBundled("shared by all accounts; a bundle has their definitions"),
        placement=Placement.SHARED,
        noun=Noun(
            lazy_gettext("Role"),
            lazy_gettext("Roles"),
            named_by="name",
            order=230,
            page="console.show_role",
        ),
        id_names=("role_id",),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(Text, unique=True)
    console: Mapped[bool] = mapped_column(default=False, server_default=sa.false(), sort_order=2)
    """Whether its users may open the console; admins always may."""


class InstanceSetting(Base):
    """A setting of the whole instance, such as that of the directory, by its name."""

    __tablename__ = "instance_settings"
    __policy__ = TablePolicy(
        audit=Audited(chain=None, digested=("value",)),
        bundle=NotBundled("shared by all accounts"),
        placement=Placement.SHARED,
        noun=Noun(
            lazy_gettext("Setting of the instance"),
            lazy_gettext("Settings of the instance"),
            order=235,
            list_page="console.show_directory",
        ),
    )

    id: Mapped[str] = mapped_column(Text, primary_key=True)
    value: Mapped[JSONObject] = mapped_column(Json)
    version: Mapped[int] = mapped_column(default=1)


class User(Base):
    """A person or a service in one account; several accounts may have the same address."""

    __tablename__ = "users"
    __table_args__ = (
        sa.UniqueConstraint("account_id", "email_key"),
        sa.Index("ix_users_id", "id"),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"]),
        sa.ForeignKeyConstraint(["role_id"], ["roles.id"]),
    )
    __policy__ = TablePolicy(
        # `email_key` is derived from an audited column.
        audit=Audited(
            ignored=("email_key", "tokens_valid_from", "last_login"), hidden=("password_hash",)
        ),
        bundle=Bundled(order=30, reset={"leaving_at": None}),  # jobs stay behind
        noun=Noun(
            lazy_gettext("User"),
            lazy_gettext("Users"),
            named_by="email",
            order=10,
            page="console.show_member",
            list_page="console.show_team",
            event="user",
        ),
        id_names=("user_id",),
    )

    account_id: Mapped[str] = mapped_column(Id, primary_key=True)
    id: Mapped[str] = mapped_column(Id, primary_key=True, default=new_id)
    email: Mapped[str] = mapped_column(Text)  # of a service empty
    email_key: Mapped[str] = mapped_column(Text)  # normalized, for look-ups and uniqueness
    name: Mapped[str | None] = mapped_column(Text)
    password_hash: Mapped[str | None] = mapped_column(Text)
    role_id: Mapped[int]
    is_active: Mapped[bool] = mapped_column(default=True)
    email_verified: Mapped[bool] = mapped_column(default=False)
    email_verified_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    auth_provider: Mapped[str] = mapped_column(Text, default="password")
    tokens_valid_from: Mapped[datetime | None] = mapped_column(UtcDateTime)
    version: Mapped[int] = mapped_column(default=1)
    last_login: Mapped[datetime | None] = mapped_column(UtcDateTime)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=clock.now)
    updated_at: Mapped[datetime] = mapped_column(
        UtcDateTime, default=created_at_default, onupdate=clock.now
    )
    language: Mapped[str | None] = mapped_column(Text)  # of pages and mails; null: the browser's
    leaving_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """Deleted then, but records that refer to the user are still being cleared."""
    attributes: Mapped[JSONObject] = mapped_column(Json, default=dict, server_default="{}")
    kind: Mapped[str] = mapped_column(Text, default=UserKind.PERSON, server_default=UserKind.PERSON)

    account: Mapped[Account] = relationship(lazy="joined", innerjoin=True)
    role: Mapped[Role] = relationship(lazy="joined", innerjoin=True)
    groups: Mapped[list[Group]] = relationship(
        secondary="group_members",
        primaryjoin="and_(User.account_id == GroupMember.account_id,"
        " User.id == GroupMember.user_id)",
        secondaryjoin="and_(GroupMember.account_id == Group.account_id,"
        " GroupMember.group_id == Group.id)",
        order_by="Group.name",
        lazy="selectin",
        viewonly=True,
    )

    @property
    def is_service(self) -> bool:
        """Whether this is a service, which acts by API keys alone."""
        return self.kind == UserKind.SERVICE

    @property
    def may_act(self) -> bool:
        """Whether the user and the account are active."""
        return self.is_active and self.account.is_active

    @property
    def may_sign_in(self) -> bool:
        return self.may_act and not self.is_service

    @property
    def label(self) -> str:
        """What to call the user by: the address, of a service the name."""
        return self.email or self.name or self.id

    @property
    def role_name(self) -> str:
        return self.role.name

    @property
    def group_names(self) -> list[str]:
        return [group.name for group in self.groups]


USER_LABEL = sa.func.coalesce(sa.func.nullif(User.email, ""), User.name)
"""`User.label` in SQL."""


class UserWord(Base):
    """A word that the directory finds a user by, with the field that it stands in."""

    __tablename__ = "user_words"
    __table_args__ = (sa.Index("ix_user_words_user", "account_id", "user_id"),)
    __policy__ = TablePolicy(
        audit=NotAudited("an index of users"),
        bundle=Bundled(order=35),
    )

    account_id: Mapped[str] = mapped_column(Id, primary_key=True)
    word: Mapped[str] = mapped_column(Text, primary_key=True)
    field: Mapped[str] = mapped_column(Text, primary_key=True)
    user_id: Mapped[str] = mapped_column(Id, primary_key=True)


class DeletedAddress(Base):
    """The address of a deleted user, whom only an admin or the directory lets in again.

    As a hash, which tells an address from others without storing it.
    """

    __tablename__ = "deleted_addresses"
    __table_args__ = (sa.ForeignKeyConstraint(["account_id"], ["accounts.id"]),)
    __policy__ = TablePolicy(
        audit=NotAudited("hashes of addresses, whose users' deletion is audited"),
        bundle=Bundled(order=50),
    )

    account_id: Mapped[str] = mapped_column(Id, primary_key=True)
    email_hash: Mapped[str] = mapped_column(Text, primary_key=True)
    deleted_at: Mapped[datetime] = mapped_column(UtcDateTime, default=clock.now)


class Group(Named, Base):
    __tablename__ = "groups"
    __table_args__ = (
        sa.UniqueConstraint("account_id", "name"),
        sa.Index("uq_groups_account_id_name_key", "account_id", "name_key", unique=True),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"]),
    )
    __policy__ = TablePolicy(
        audit=Audited(ignored=("name_key",)),
        bundle=Bundled(order=20),
        noun=Noun(
            lazy_gettext("Group"),
            lazy_gettext("Groups"),
            named_by="name",
            order=20,
            page="console.show_group",
            list_page="console.show_groups",
            event="group",
        ),
        id_names=("group_id",),
    )

    account_id: Mapped[str] = mapped_column(Id, primary_key=True)
    id: Mapped[str] = mapped_column(Id, primary_key=True, default=new_id)
    name: Mapped[str] = mapped_column(Text)

    @property
    def is_system(self) -> bool:
        """Whether this is the built-in group that every account has."""
        return self.name == PII_GROUP


class GroupMember(Base):
    __tablename__ = "group_members"
    __table_args__: object = (
        sa.ForeignKeyConstraint(
            ["account_id", "group_id"], ["groups.account_id", "groups.id"], ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["account_id", "user_id"], ["users.account_id", "users.id"], ondelete="CASCADE"
        ),
        # With the group, or SQLite reads the memberships of all users instead.
        sa.Index("ix_group_members_user", "account_id", "user_id", "group_id"),
    )
    __policy__ = TablePolicy(
        audit=Audited(),
        bundle=Bundled(order=40),
        noun=Noun(
            lazy_gettext("Group member"),
            lazy_gettext("Group members"),
            order=30,
            list_page="console.show_groups",
            event="group_member",
        ),
    )

    account_id: Mapped[str] = mapped_column(Id, primary_key=True)
    group_id: Mapped[str] = mapped_column(Id, primary_key=True)
    user_id: Mapped[str] = mapped_column(Id, primary_key=True)
