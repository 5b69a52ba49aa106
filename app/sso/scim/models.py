"""The directory's data of users and groups, beside their rows."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from app.db import Base
from app.db.policy import Audited, Bundled, Noun, TablePolicy
from app.db.types import Id, Text
from app.types import JSONObject
from app.web.languages import lazy_gettext


class DirectoryUser(Base):
    """A user whom the directory created or took over."""

    __tablename__ = "directory_users"
    __table_args__ = (
        sa.ForeignKeyConstraint(
            ["account_id", "user_id"], ["users.account_id", "users.id"], ondelete="CASCADE"
        ),
        sa.UniqueConstraint("account_id", "user_name_key"),
        sa.Index("ix_directory_users_external_id", "account_id", "external_id"),
    )
    __policy__ = TablePolicy(
        # Names of people, which erasing a user could not find here.
        audit=Audited(
            ignored=("user_name_key",), hidden=("user_name", "external_id", "attributes")
        ),
        bundle=Bundled(order=120, is_copied=False),
        noun=Noun(lazy_gettext("Directory user"), lazy_gettext("Directory users"), order=100),
        sample={"attributes": {"displayName": "{mark}"}, "given_role_id": None},
    )

    account_id: Mapped[str] = mapped_column(Id, primary_key=True)
    user_id: Mapped[str] = mapped_column(Id, primary_key=True)
    user_name: Mapped[str] = mapped_column(Text)
    user_name_key: Mapped[str] = mapped_column(Text)  # normalized, for look-ups and uniqueness
    external_id: Mapped[str | None] = mapped_column(Text)
    attributes: Mapped[JSONObject] = mapped_column(sa.JSON, default=dict)  # displayName, name
    is_created: Mapped[bool] = mapped_column(default=False)  # by the directory
    # The role that the directory gave; null once somebody else assigned one.
    given_role_id: Mapped[int | None]


class DirectoryGroup(Base):
    """A group that the directory created or took over: its members get roles by it."""

    __tablename__ = "directory_groups"
    __table_args__ = (
        sa.ForeignKeyConstraint(
            ["account_id", "group_id"], ["groups.account_id", "groups.id"], ondelete="CASCADE"
        ),
        sa.Index("ix_directory_groups_external_id", "account_id", "external_id"),
    )
    __policy__ = TablePolicy(
        audit=Audited(),
        bundle=Bundled(order=130, is_copied=False),
        noun=Noun(lazy_gettext("Directory group"), lazy_gettext("Directory groups"), order=110),
    )

    account_id: Mapped[str] = mapped_column(Id, primary_key=True)
    group_id: Mapped[str] = mapped_column(Id, primary_key=True)
    external_id: Mapped[str | None] = mapped_column(Text)
