"""The audit log, the head of every account's chain, and checkpoints.

Changes outlive the rows they describe, so these tables have no foreign keys.
"""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from app import clock
from app.db import Base
from app.db.policy import Bundled, NotAudited, NotBundled, OnClose, Placement, TablePolicy
from app.db.types import Id, Text, UtcDateTime


class AuditChange(Base):
    """One change of a row: who, when, where, and the changed columns with old and new values.

    Each column is an entry of the log. What else an entry has is computed from this row
    (`app/audit/entries.py`). The database itself refuses UPDATE and DELETE, but for erasures
    (migration 0030).
    """

    __tablename__ = "audit_changes"
    # One index per filter of the list in default order, also within an account: except for users,
    # who seldom act in more than one.
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
                ("operation", "operation"),
            )
        ),
        # Where no user acts, which is seldom: others are found by the user.
        *(
            sa.Index(
                f"ix_audit_changes_{name}",
                *(*columns, "occurred_at", "first_id"),
                sqlite_where=sa.text("actor_kind <> 'user'"),
                postgresql_where=sa.text("actor_kind <> 'user'"),
            )
            for name, columns in (
                ("actor", ["actor_id"]),
                ("actor_kind", ["actor_kind"]),
                ("account_actor_kind", ["account_id", "actor_kind"]),
            )
        ),
        # What follows a page of the change feed (`app/realtime/feed/changes.py`).
        sa.Index("ix_audit_changes_account_table_number", "account_id", "table_name", "first_id"),
    )
    __policy__ = TablePolicy(
        audit=NotAudited("the log itself; erasures write entries of their own"),
        bundle=Bundled(order=20, is_log=True),
        on_close=OnClose.KEPT,
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
    user_email: Mapped[str | None] = mapped_column(Text)
    user_name: Mapped[str | None] = mapped_column(Text)
    es_username: Mapped[str | None] = mapped_column(Text)
    es_reason: Mapped[str | None] = mapped_column(Text)
    es_timestamp: Mapped[datetime | None] = mapped_column(UtcDateTime)
    ip_address: Mapped[str | None] = mapped_column(Text)
    user_agent: Mapped[str | None] = mapped_column(Text)
    request_id: Mapped[str | None] = mapped_column(Text)
    extra_metadata: Mapped[str | None] = mapped_column(Text)
    """A JSON object."""
    columns: Mapped[str] = mapped_column(Text)
    """The names of the changed columns, a JSON array; values stand in the same order."""
    old_values: Mapped[str | None] = mapped_column(Text)
    """A JSON array; null if there are none."""
    new_values: Mapped[str | None] = mapped_column(Text)
    unchanged: Mapped[str | None] = mapped_column(Text)
    """Further values for the change feed (`app/audit/unchanged.py`); no part of the entries."""
    size: Mapped[int | None] = mapped_column(sa.BigInteger)
    """The characters of the values, so that the feed reads no more than it has room for."""
    salts: Mapped[bytes | None] = mapped_column(sa.LargeBinary)
    """16 bytes for each entry; null if the values are erased."""
    actor_salts: Mapped[bytes | None] = mapped_column(sa.LargeBinary)
    """16 bytes for all entries or for each; null if the actor is erased."""
    erased_digests: Mapped[str | None] = mapped_column(Text)
    """Digests of erased parts: a JSON object of `values` and `actor`, each an array."""
    ids: Mapped[str | None] = mapped_column(Text)
    """The ids of the entries, a JSON array; null if they are consecutive."""
    checksum: Mapped[bytes] = mapped_column(sa.LargeBinary)
    """That of the last entry."""
    digest_version: Mapped[int | None] = mapped_column(sa.BigInteger)
    """Null: 1, written before there were others, or by a process of then."""
    actor_kind: Mapped[str | None] = mapped_column(Text)
    actor_id: Mapped[str | None] = mapped_column(Text)
    actor_name: Mapped[str | None] = mapped_column(Text)


class PendingChange(Base):
    """A change as its transaction stored it, before it has a place in the chain and in the feed.

    The database refuses UPDATE, and DELETE of what the log does not have (migration 0068).
    """

    __tablename__ = "audit_pending"
    __policy__ = TablePolicy(
        audit=NotAudited("the log itself, before its chain"),
        bundle=NotBundled("sealed before an export"),
        on_close=OnClose.KEPT,
    )

    account_id: Mapped[str] = mapped_column(Id, primary_key=True)
    id: Mapped[int] = mapped_column(sa.BigInteger, sa.Identity(), primary_key=True)
    """Ascends from a change to all that begins after its commit."""
    operation: Mapped[str] = mapped_column(Text)
    table_name: Mapped[str] = mapped_column(Text)
    record_id: Mapped[str] = mapped_column(Text)
    occurred_at: Mapped[datetime] = mapped_column(UtcDateTime)
    size: Mapped[int] = mapped_column(sa.BigInteger)
    columns: Mapped[str] = mapped_column(Text)
    old_values: Mapped[str | None] = mapped_column(Text)
    new_values: Mapped[str | None] = mapped_column(Text)
    unchanged: Mapped[str | None] = mapped_column(Text)
    user_id: Mapped[str] = mapped_column(Text)
    user_email: Mapped[str | None] = mapped_column(Text)
    user_name: Mapped[str | None] = mapped_column(Text)
    ip_address: Mapped[str | None] = mapped_column(Text)
    user_agent: Mapped[str | None] = mapped_column(Text)
    request_id: Mapped[str | None] = mapped_column(Text)
    es_username: Mapped[str | None] = mapped_column(Text)
    es_reason: Mapped[str | None] = mapped_column(Text)
    es_timestamp: Mapped[datetime | None] = mapped_column(UtcDateTime)
    extra_metadata: Mapped[str | None] = mapped_column(Text)
    salts: Mapped[bytes | None] = mapped_column(sa.LargeBinary)
    """16 bytes for each entry; null for a change that is not audited."""
    actor_salts: Mapped[bytes | None] = mapped_column(sa.LargeBinary)
    digest_version: Mapped[int | None] = mapped_column(sa.BigInteger)
    actor_kind: Mapped[str | None] = mapped_column(Text)
    actor_id: Mapped[str | None] = mapped_column(Text)
    actor_name: Mapped[str | None] = mapped_column(Text)


class AuditHead(Base):
    """The end of an account's chain; its row lock serializes those who seal changes."""

    __tablename__ = "audit_heads"
    __policy__ = TablePolicy(
        audit=NotAudited("the log itself"),
        bundle=NotBundled("follows from the chain"),
        on_close=OnClose.KEPT,
    )

    account_id: Mapped[str] = mapped_column(Id, primary_key=True)
    last_id: Mapped[int] = mapped_column(sa.BigInteger)
    listed_id: Mapped[int] = mapped_column(sa.BigInteger, default=0, server_default="0")
    """Unused; processes of 0.2.0 write it until they are restarted."""
    checksum: Mapped[str] = mapped_column(Text)
    checkpoint_id: Mapped[int] = mapped_column(sa.BigInteger, default=0)
    changed_at: Mapped[datetime] = mapped_column(UtcDateTime)
    expired_change: Mapped[int] = mapped_column(sa.BigInteger, default=0, server_default="0")
    """The change feed no longer has all changes up to this one."""
    rights_number: Mapped[int | None] = mapped_column(sa.BigInteger)
    """The last of RightsChange that has a place in the account's change feed."""


class FeedChange(Base):
    """A change of a record while auditing is off, for the change feed.

    Numbered like the changes of the audit log, with which it makes one sequence for each account.
    """

    __tablename__ = "feed_changes"
    __table_args__ = (
        sa.Index("ix_feed_changes_occurred_at", "occurred_at"),
        sa.Index("ix_feed_changes_account_table_number", "account_id", "table_name", "change"),
    )
    __policy__ = TablePolicy(
        audit=NotAudited("changes of records while auditing is off"),
        bundle=NotBundled("clients of the change feed load anew after an import"),
    )

    account_id: Mapped[str] = mapped_column(Id, primary_key=True)
    change: Mapped[int] = mapped_column(sa.BigInteger, primary_key=True, autoincrement=False)
    operation: Mapped[str] = mapped_column(Text)
    table_name: Mapped[str] = mapped_column(Text)
    record_id: Mapped[str] = mapped_column(Text)
    user_id: Mapped[str] = mapped_column(Text)
    occurred_at: Mapped[datetime] = mapped_column(UtcDateTime)
    size: Mapped[int] = mapped_column(sa.BigInteger)
    columns: Mapped[str] = mapped_column(Text)
    old_values: Mapped[str | None] = mapped_column(Text)
    new_values: Mapped[str | None] = mapped_column(Text)
    unchanged: Mapped[str | None] = mapped_column(Text)
    actor_kind: Mapped[str | None] = mapped_column(Text)
    actor_id: Mapped[str | None] = mapped_column(Text)
    actor_name: Mapped[str | None] = mapped_column(Text)
    """None of a person, whom an erasure would have to find here, too."""


class FeedGeneration(Base):
    """From when on change numbers are those of another history: after a restore, for example."""

    __tablename__ = "feed_generations"
    __policy__ = TablePolicy(
        audit=NotAudited("what restores and failovers leave behind, which the instance has"),
        bundle=NotBundled("restores of the instance"),
        placement=Placement.SHARED,
    )

    first_change: Mapped[int] = mapped_column(sa.BigInteger, primary_key=True, autoincrement=False)
    """Later changes of all accounts have higher numbers; the feed has none up to this one."""
    timeline: Mapped[int | None] = mapped_column(sa.BigInteger)
    """That of PostgreSQL's write-ahead log; None on SQLite."""
    begun_at: Mapped[datetime] = mapped_column(UtcDateTime, default=clock.now)


class RightsChange(Base):
    """The last change of what readers may see of a collection, in all accounts.

    Each account's feed gets its mark when it is next read (`app/realtime/feed/marks.py`).
    """

    __tablename__ = "rights_changes"
    __policy__ = TablePolicy(
        audit=NotAudited("changes of collections and roles, which are audited"),
        bundle=NotBundled("shared by all accounts"),
        placement=Placement.SHARED,
    )

    collection: Mapped[str] = mapped_column(Text, primary_key=True)
    """Its name then; `@role` and `@values:<id>` for all whose rules ask for these."""
    number: Mapped[int] = mapped_column(sa.BigInteger)
    """Ascends in the order of commits; what one transaction changes shares it."""
    changed_at: Mapped[datetime] = mapped_column(UtcDateTime)


class AuditCheckpoint(Base):
    """A signed statement that a chain had this checksum at this entry."""

    __tablename__ = "audit_checkpoints"
    __table_args__ = (sa.Index("ix_audit_checkpoints_newest", "created_at", "account_id"),)
    __policy__ = TablePolicy(
        audit=NotAudited("the log itself"),
        bundle=Bundled(order=30, is_log=True),
        on_close=OnClose.KEPT,
    )

    account_id: Mapped[str] = mapped_column(Id, primary_key=True)
    entry_id: Mapped[int] = mapped_column(sa.BigInteger, primary_key=True, autoincrement=False)
    checksum: Mapped[str] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=clock.now)
    public_key: Mapped[str] = mapped_column(Text)
    signature: Mapped[str] = mapped_column(Text)


class ChainStart(Base):
    """A signed statement that older entries were removed: the chain begins after this one."""

    __abstract__ = True

    account_id: Mapped[str] = mapped_column(Id, primary_key=True)
    entry_id: Mapped[int] = mapped_column(sa.BigInteger)
    checksum: Mapped[bytes] = mapped_column(sa.LargeBinary)
    removed: Mapped[int] = mapped_column(sa.BigInteger)
    """The number of entries removed so far."""
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    public_key: Mapped[str] = mapped_column(Text)
    signature: Mapped[str] = mapped_column(Text)


class AuditStart(ChainStart):
    """The start of an account's chain of the audit log."""

    __tablename__ = "audit_starts"
    __policy__ = TablePolicy(
        audit=NotAudited("the log itself; cutting it writes an entry"),
        bundle=Bundled(order=10, is_log=True),
        on_close=OnClose.KEPT,
    )


class ChainVerification(Base):
    """The last verification of a chain, and its result."""

    __tablename__ = "chain_verifications"
    __policy__ = TablePolicy(
        audit=NotAudited("about the logs"),
        bundle=NotBundled("what this instance verified"),
        on_close=OnClose.KEPT,
    )

    account_id: Mapped[str] = mapped_column(Id, primary_key=True)
    log: Mapped[str] = mapped_column(Text, primary_key=True)
    """`audit` or `security`."""
    verified_at: Mapped[datetime] = mapped_column(UtcDateTime)
    is_valid: Mapped[bool]
    checked: Mapped[int] = mapped_column(sa.BigInteger)
    broken_id: Mapped[int | None] = mapped_column(sa.BigInteger)
    """The first entry that is broken."""
    reason: Mapped[str | None] = mapped_column(Text)
