"""Domains of accounts, and which account owns a proved domain."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from app import clock
from app.accounts.models import ADMIN, VIEWER
from app.db import Base
from app.db.policy import Audited, Bundled, NotAudited, NotBundled, Noun, Placement, TablePolicy
from app.db.types import Id, Text, UtcDateTime, created_at_default
from app.ids import new_id
from app.web.languages import lazy_gettext

FAILING_AFTER, LOST_AFTER = 3, 14
"""Daily checks that fail in a row until admins are warned, and until the proof ends."""
LABEL = "_atrium-challenge"


class DomainState(StrEnum):
    """Whether an account has proved a domain."""

    PENDING = "pending"
    VERIFIED = "verified"
    FAILING = "failing"  # proved, but not by its last checks


def record_value(token: str) -> str:
    """The TXT record that proves a domain."""
    return f"atrium-domain-verification={token}"


class AccountDomain(Base):
    """A domain that an account claims, and once it is proved, its settings."""

    __tablename__ = "account_domains"
    __table_args__ = (
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"]),
        sa.UniqueConstraint("account_id", "domain"),
        sa.Index("ix_account_domains_last_checked_at", "last_checked_at"),
    )
    __policy__ = TablePolicy(
        audit=Audited(
            ignored=("last_checked_at", "failed_checks", "sender_dmarc"), hidden=("token",)
        ),
        bundle=Bundled(
            order=140,
            reset={
                "verified_at": None,
                "last_checked_at": None,
                "failed_checks": 0,
                "sender_proof": None,
                "sender_dmarc": None,
            },
        ),
        noun=Noun(
            lazy_gettext("Domain"),
            lazy_gettext("Domains"),
            named_by="domain",
            order=60,
            page="console.show_domain",
            list_page="console.show_domains",
            event="domain",
        ),
        id_names=("domain_id",),
    )

    account_id: Mapped[str] = mapped_column(Id, primary_key=True)
    id: Mapped[str] = mapped_column(Id, primary_key=True, default=new_id)
    domain: Mapped[str] = mapped_column(Text)  # ASCII (IDNA), lower case
    token: Mapped[str] = mapped_column(Text)
    verified_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    last_checked_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    failed_checks: Mapped[int] = mapped_column(default=0)
    auto_join: Mapped[bool] = mapped_column(default=False)
    auto_join_role: Mapped[str | None] = mapped_column(Text)  # null: viewer
    sso_only: Mapped[bool] = mapped_column(default=False)
    sender_proof: Mapped[str | None] = mapped_column(Text)  # by which DNS record it may send mails
    sender_dmarc: Mapped[bool | None]  # whether it has a DMARC record; null: not looked up
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=clock.now)
    updated_at: Mapped[datetime] = mapped_column(
        UtcDateTime, default=created_at_default, onupdate=clock.now
    )

    @property
    def state(self) -> DomainState:
        if self.verified_at is None:
            return DomainState.PENDING
        is_failing = self.failed_checks >= FAILING_AFTER
        return DomainState.FAILING if is_failing else DomainState.VERIFIED

    @property
    def role_of_new_users(self) -> str:
        """The name of the role of users who join, which may be gone; never `admin`."""
        return VIEWER if self.auto_join_role in (None, ADMIN) else str(self.auto_join_role)

    @property
    def record_name(self) -> str:
        return f"{LABEL}.{self.domain}"

    @property
    def record_value(self) -> str:
        """The text of the TXT record."""
        return record_value(self.token)


class VerifiedDomain(Base):
    """The one account that owns a domain: shared by all accounts, as any of them may ask."""

    __tablename__ = "verified_domains"
    __table_args__ = (sa.ForeignKeyConstraint(["owner_account_id"], ["accounts.id"]),)
    __policy__ = TablePolicy(
        audit=NotAudited("an index of the domains of accounts"),
        bundle=NotBundled("an owner of a domain proves it again on each instance"),
        placement=Placement.SHARED,
    )

    domain: Mapped[str] = mapped_column(Text, primary_key=True)
    owner_account_id: Mapped[str] = mapped_column(Id)
    token: Mapped[str] = mapped_column(Text)
