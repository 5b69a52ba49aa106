"""The table of uploaded files."""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from app import clock
from app.db import Base
from app.db.policy import Bundled, NotAudited, Sample, TablePolicy
from app.db.types import Id, Text, UtcDateTime


class StoredFile(Base):
    """An uploaded file, and the record that has it."""

    __tablename__ = "files"
    __table_args__ = (
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"]),
        sa.Index("ix_files_record", "account_id", "record_id"),
        sa.Index(
            "ix_files_untaken",
            "created_at",
            sqlite_where=sa.text("record_id IS NULL"),
            postgresql_where=sa.text("record_id IS NULL"),
        ),
        sa.Index("ix_files_released_at", "released_at"),
        sa.Index("ix_files_removed_at", "removed_at"),
    )
    __policy__ = TablePolicy(
        audit=NotAudited("values of records, whose changes are audited"),
        bundle=Bundled(order=220),
        id_names=("file_id",),
        sample={
            "mime_type": "text/plain",
            "size": Sample.SIZE,
            "collection_id": None,
            "record_id": None,
            "released_at": None,
            "removed_at": None,
        },
    )

    account_id: Mapped[str] = mapped_column(Id, primary_key=True)
    id: Mapped[str] = mapped_column(Id, primary_key=True)
    name: Mapped[str] = mapped_column(Text)
    size: Mapped[int] = mapped_column(sa.BigInteger)
    mime_type: Mapped[str] = mapped_column(Text)
    sha256: Mapped[str] = mapped_column(Text)
    uploaded_by: Mapped[str | None] = mapped_column(Id)  # null for anonymous callers
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=clock.now)
    collection_id: Mapped[str | None] = mapped_column(Id)
    record_id: Mapped[str | None] = mapped_column(Id)  # the record that has it, or had it
    released_at: Mapped[datetime | None] = mapped_column(UtcDateTime)  # the record let go of it
    removed_at: Mapped[datetime | None] = mapped_column(UtcDateTime)  # its bytes are to be deleted
    link_version: Mapped[int] = mapped_column(default=0, server_default="0")  # times links ended


FILES = Base.metadata.tables[StoredFile.__tablename__]
