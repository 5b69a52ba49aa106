"""The runs of scheduled backups, and of those that `bin/atrium backup --verify` makes."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from app import clock
from app.db import Base
from app.db.policy import NotAudited, NotBundled, Placement, TablePolicy
from app.db.types import Id, Text, UtcDateTime
from app.ids import new_id


class RunState(StrEnum):
    """The state of a backup."""

    PENDING = "pending"
    PROVED = "proved"
    FAILED = "failed"


class BackupRun(Base):
    """A backup that is to be made, was made and proved, or failed.

    It belongs to the instance. At most one is pending, from its request to its end.
    """

    __tablename__ = "backup_runs"
    __table_args__ = (
        sa.Index(
            "uq_backup_runs_pending",
            "status",
            unique=True,
            sqlite_where=sa.text("status = 'pending'"),
            postgresql_where=sa.text("status = 'pending'"),
        ),
        sa.Index("ix_backup_runs_created_at", "status", "created_at"),
    )
    __policy__ = TablePolicy(
        audit=NotAudited("a log of backups, which the instance has"),
        bundle=NotBundled("backups of the instance"),
        placement=Placement.SHARED,
    )

    id: Mapped[str] = mapped_column(Id, primary_key=True, default=new_id)
    status: Mapped[str] = mapped_column(Text, default=RunState.PENDING)
    place: Mapped[str] = mapped_column(Text)
    """The folder or bucket, without credentials."""
    name: Mapped[str | None] = mapped_column(Text)  # of the file
    attempt: Mapped[int] = mapped_column(default=0)
    """Counts the workers that took it: one that lost its lease changes nothing any more."""
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=clock.now)
    started_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    finished_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    size: Mapped[int | None] = mapped_column(sa.BigInteger)  # with uploaded files
    sha256: Mapped[str | None] = mapped_column(Text)  # of the database's file
    rows: Mapped[int | None] = mapped_column(sa.BigInteger)
    files: Mapped[int | None] = mapped_column(sa.BigInteger)
    audit_entries: Mapped[int | None] = mapped_column(sa.BigInteger)
    proved_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    error: Mapped[str | None] = mapped_column(Text)
    deleted_at: Mapped[datetime | None] = mapped_column(UtcDateTime)  # by retention


RUNS = Base.metadata.tables[BackupRun.__tablename__]
