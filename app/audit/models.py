"""The audit log, the head of every account's chain, and checkpoints (spec 2, contract section 7).

Entries outlive the rows they describe, so these tables have no foreign keys.
"""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from app import clock
from app.db import Base
from app.db.types import Id, Text, UtcDateTime
from app.types import JSONObject


class AuditEntry(Base):
    """One change of one column. The database itself refuses UPDATE and DELETE (migration 0005)."""

    __tablename__ = "audit_log"

    account_id: Mapped[str] = mapped_column(Id, primary_key=True)
    id: Mapped[int] = mapped_column(sa.BigInteger, primary_key=True, autoincrement=False)
    operation: Mapped[str] = mapped_column(Text)
    table_name: Mapped[str] = mapped_column(Text)
    record_id: Mapped[str] = mapped_column(Text)
    column_name: Mapped[str] = mapped_column(Text)
    old_value: Mapped[str | None] = mapped_column(Text)
    new_value: Mapped[str | None] = mapped_column(Text)
    user_id: Mapped[str] = mapped_column(Text)
    user_email: Mapped[str | None] = mapped_column(Text)
    user_name: Mapped[str | None] = mapped_column(Text)
    es_username: Mapped[str | None] = mapped_column(Text)
    es_reason: Mapped[str | None] = mapped_column(Text)
    es_timestamp: Mapped[datetime | None] = mapped_column(UtcDateTime)
    ip_address: Mapped[str | None] = mapped_column(Text)
    user_agent: Mapped[str | None] = mapped_column(Text)
    request_id: Mapped[str | None] = mapped_column(Text)
    occurred_at: Mapped[datetime] = mapped_column(UtcDateTime)
    extra_metadata: Mapped[JSONObject | None] = mapped_column(sa.JSON(none_as_null=True))
    salt: Mapped[str | None] = mapped_column(Text)
    values_digest: Mapped[str] = mapped_column(Text)
    actor_salt: Mapped[str | None] = mapped_column(Text)
    actor_digest: Mapped[str] = mapped_column(Text)
    entry_digest: Mapped[str] = mapped_column(Text)
    previous_hash: Mapped[str] = mapped_column(Text)
    checksum: Mapped[str] = mapped_column(Text)


class AuditChange(Base):
    """The index of changes: one row's change is the entries from `first_id` to `last_id`.

    Lists find entries by their change: a created record has ten entries, but only one row in each
    of these indexes.
    """

    __tablename__ = "audit_changes"
    # One index per filter of the list in default order, also within an account.
    __table_args__ = (
        sa.Index("ix_audit_changes_newest", "occurred_at", "first_id"),
        sa.Index("ix_audit_changes_account", "account_id", "occurred_at", "first_id"),
        sa.Index("ix_audit_changes_table", "table_name", "occurred_at", "first_id"),
        sa.Index("ix_audit_changes_record", "record_id", "occurred_at", "first_id"),
        sa.Index("ix_audit_changes_user", "user_id", "occurred_at", "first_id"),
        sa.Index("ix_audit_changes_operation", "operation", "occurred_at", "first_id"),
        *(
            sa.Index(
                f"ix_audit_changes_account_{name}",
                *("account_id", column, "occurred_at", "first_id"),
            )
            for name, column in (
                ("table", "table_name"),
                ("user", "user_id"),
                ("operation", "operation"),
            )
        ),
    )

    account_id: Mapped[str] = mapped_column(Id, primary_key=True)
    first_id: Mapped[int] = mapped_column(sa.BigInteger, primary_key=True, autoincrement=False)
    last_id: Mapped[int] = mapped_column(sa.BigInteger)
    entries: Mapped[int] = mapped_column(sa.BigInteger)
    operation: Mapped[str] = mapped_column(Text)
    table_name: Mapped[str] = mapped_column(Text)
    record_id: Mapped[str] = mapped_column(Text)
    user_id: Mapped[str] = mapped_column(Text)
    occurred_at: Mapped[datetime] = mapped_column(UtcDateTime)


class AuditHead(Base):
    """The end of an account's chain; its row lock serializes the account's writers."""

    __tablename__ = "audit_heads"

    account_id: Mapped[str] = mapped_column(Id, primary_key=True)
    last_id: Mapped[int] = mapped_column(sa.BigInteger)
    listed_id: Mapped[int] = mapped_column(sa.BigInteger, default=0, server_default="0")
    """The newest entry in the change index; a trigger adds missing ones up to `last_id`."""
    checksum: Mapped[str] = mapped_column(Text)
    checkpoint_id: Mapped[int] = mapped_column(sa.BigInteger, default=0)
    changed_at: Mapped[datetime] = mapped_column(UtcDateTime)


class AuditCheckpoint(Base):
    """A signed statement that a chain had this checksum at this entry."""

    __tablename__ = "audit_checkpoints"
    __table_args__ = (sa.Index("ix_audit_checkpoints_newest", "created_at", "account_id"),)

    account_id: Mapped[str] = mapped_column(Id, primary_key=True)
    entry_id: Mapped[int] = mapped_column(sa.BigInteger, primary_key=True, autoincrement=False)
    checksum: Mapped[str] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=clock.now)
    public_key: Mapped[str] = mapped_column(Text)
    signature: Mapped[str] = mapped_column(Text)
