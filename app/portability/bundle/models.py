"""Exports that admins have started, and certificates of deleted accounts."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from app import clock
from app.db import Base
from app.db.policy import Audited, NotAudited, NotBundled, Noun, Placement, Sample, TablePolicy
from app.db.types import Id, Text, UtcDateTime
from app.ids import new_id
from app.types import JSONObject
from app.web.languages import lazy_gettext


class ExportState(StrEnum):
    """The state of an export."""

    PENDING = "pending"
    RUNNING = "running"
    READY = "ready"
    FAILED = "failed"
    EXPIRED = "expired"


class ExportFormat(StrEnum):
    """What an export is; also how its file's name ends."""

    BUNDLE = "bundle"
    """Encrypted, with everything, to be imported."""
    ZIP = "zip"
    """Readable without this service, and without secrets."""


class AccountExport(Base):
    """An export of an account; its file is a blob, until it expires. The row stays for longer."""

    __tablename__ = "account_exports"
    __table_args__ = (
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"]),
        sa.Index("ix_account_exports_expires_at", "expires_at"),
    )
    __policy__ = TablePolicy(
        audit=Audited(
            ignored=("status", "lines", "size", "sha256", "error", "finished_at", "expires_at")
        ),
        bundle=NotBundled("exports of the account"),
        noun=Noun(
            lazy_gettext("Account export"),
            lazy_gettext("Account exports"),
            order=170,
            page="console.show_exports",
            list_page="console.show_exports",
        ),
        id_names=("export_id",),
        # Ready, and empty, as no bundle was written.
        sample={"status": ExportState.READY, "size": 0, "expires_at": Sample.LATER},
    )

    account_id: Mapped[str] = mapped_column(Id, primary_key=True)
    id: Mapped[str] = mapped_column(Id, primary_key=True, default=new_id)
    format: Mapped[str] = mapped_column(
        Text, default=ExportFormat.BUNDLE, server_default=ExportFormat.BUNDLE
    )
    status: Mapped[str] = mapped_column(Text, default=ExportState.PENDING)
    lines: Mapped[int] = mapped_column(sa.BigInteger, default=0)  # written so far
    size: Mapped[int | None] = mapped_column(sa.BigInteger)
    sha256: Mapped[str | None] = mapped_column(Text)
    error: Mapped[str | None] = mapped_column(Text)
    requested_by: Mapped[str] = mapped_column(Id)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=clock.now)
    finished_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    expires_at: Mapped[datetime] = mapped_column(UtcDateTime)

    @property
    def state(self) -> str:
        """The status, which is stored as expired only once the bundle is deleted."""
        return ExportState.EXPIRED if self.expires_at <= clock.now() else self.status


class DeletionCertificate(Base):
    """The counts of a closed account's data, and once none is left, the signed certificate.

    It belongs to the instance: the deletion of the account leaves it.
    """

    __tablename__ = "deletion_certificates"
    __policy__ = TablePolicy(
        audit=NotAudited("signed themselves; the deletion is in the account's entries"),
        bundle=NotBundled("certificates of deleted accounts, which the instance has"),
        placement=Placement.SHARED,
    )

    closed_account_id: Mapped[str] = mapped_column(Id, primary_key=True)
    counts: Mapped[JSONObject] = mapped_column(sa.JSON)
    closed_at: Mapped[datetime] = mapped_column(UtcDateTime)
    closed_by: Mapped[str] = mapped_column(Id)
    certificate: Mapped[JSONObject | None] = mapped_column(sa.JSON(none_as_null=True))
