"""Events of the security log, before and after they are sealed (docs/security-log.md).

A request inserts into `security_pending` without waiting for anybody. Sealing numbers the events
and links them to the chain (`app/audit/security_log/sealing.py`). The log outlives what it
describes, so there are no foreign keys.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from app import clock
from app.audit.models import ChainStart
from app.db import Base
from app.db.policy import (
    Audited,
    Bundled,
    NotAudited,
    NotBundled,
    Noun,
    OnClose,
    Sample,
    TablePolicy,
)
from app.db.types import Id, Text, UtcDateTime
from app.ids import new_id
from app.web.languages import lazy_gettext


class EventKind(StrEnum):
    """The kind of an event. Changes of objects have none here: their noun and verb name them."""

    SIGNED_IN = "sign_in.succeeded"
    SIGN_IN_FAILED = "sign_in.failed"
    SIGN_IN_LOCKED = "sign_in.locked"
    SIGN_INS_SUPPRESSED = "sign_in.suppressed"
    SESSIONS_ENDED = "sessions.ended"
    REFRESH_TOKEN_REUSED = "refresh_token.reused"  # noqa: S105 - a kind
    PASSWORD_CHANGED = "password.changed"  # noqa: S105 - a kind
    PERSONAL_DATA_READ = "personal_data.read"
    OPERATOR_READ = "operator.records_read"
    OPERATOR_REQUEST = "operator.request"
    EXTENSION_AS_OPERATOR = "extension.as_operator"
    PORTAL_CREATED = "portal.created"
    FILE_LINK_CREATED = "file_link.created"
    FILE_LINK_USED = "file_link.used"
    FILE_LINK_ENDED = "file_link.ended"
    LOG_ERASED = "log.erased"
    LOG_CUT = "log.cut"


class _Event:
    """The columns of both pending and sealed events."""

    account_id: Mapped[str] = mapped_column(Id, primary_key=True, sort_order=-1)
    kind: Mapped[str] = mapped_column(Text)
    target_type: Mapped[str] = mapped_column(Text)
    """The table of what the event is about: `users`, `api_keys`, `col_posts`."""
    target_id: Mapped[str] = mapped_column(Text)
    """Its id; empty if there are several, or none."""
    path: Mapped[str | None] = mapped_column(Text)
    """The way in which personal data was read: `list`, `export`, `webhook` and so on."""
    user_id: Mapped[str] = mapped_column(Text)
    occurred_at: Mapped[datetime] = mapped_column(UtcDateTime)
    user_email: Mapped[str | None] = mapped_column(Text)
    user_name: Mapped[str | None] = mapped_column(Text)
    ip_address: Mapped[str | None] = mapped_column(Text)
    user_agent: Mapped[str | None] = mapped_column(Text)
    request_id: Mapped[str | None] = mapped_column(Text)
    details: Mapped[str | None] = mapped_column(Text)
    """A JSON object; null if it was erased."""
    digest_version: Mapped[int | None] = mapped_column(sa.BigInteger)
    """Null: 1, written before there were others, or by a process of then."""
    actor_kind: Mapped[str | None] = mapped_column(Text)
    actor_id: Mapped[str | None] = mapped_column(Text)
    actor_name: Mapped[str | None] = mapped_column(Text)


class PendingEvent(_Event, Base):
    """An event without a place in the chain."""

    __tablename__ = "security_pending"
    __policy__ = TablePolicy(
        audit=NotAudited("a log itself"),
        bundle=NotBundled("events are sealed before an export"),
        on_close=OnClose.KEPT,
    )

    id: Mapped[str] = mapped_column(Id, primary_key=True)


class SecurityEvent(_Event, Base):
    """A sealed event. The database itself refuses UPDATE and DELETE, but for erasures and cuts."""

    __tablename__ = "security_events"
    __table_args__ = (
        sa.Index("ix_security_events_kind", "account_id", "kind", "number"),
        sa.Index("ix_security_events_user", "user_id", "account_id", "number"),
        sa.Index("ix_security_events_target", "account_id", "target_type", "target_id", "number"),
        sa.Index("ix_security_events_time", "account_id", "occurred_at"),
        sa.Index("ix_security_events_actor", "account_id", "actor_id", "number"),
    )
    __policy__ = TablePolicy(
        audit=NotAudited("a log itself"),
        bundle=Bundled(order=50, is_log=True),
        on_close=OnClose.KEPT,
    )

    number: Mapped[int] = mapped_column(sa.BigInteger, primary_key=True, autoincrement=False)
    salt: Mapped[str | None] = mapped_column(Text)
    values_digest: Mapped[str] = mapped_column(Text)
    actor_salt: Mapped[str | None] = mapped_column(Text)
    actor_digest: Mapped[str] = mapped_column(Text)
    checksum: Mapped[str] = mapped_column(Text)


class SecurityStream(Base):
    """The receiver of an account's security log, and the last event that was sent."""

    __tablename__ = "security_streams"
    __table_args__ = (sa.UniqueConstraint("account_id", name="uq_security_streams_account_id"),)
    __policy__ = TablePolicy(
        audit=Audited(
            ignored=(
                "sent_number",
                "attempts",
                "due_at",
                "failing_since",
                "last_error",
                "last_sent_at",
            ),
            hidden=("secret",),
        ),
        bundle=NotBundled("a receiver proves the numbers of one log"),
        encrypted=("secret",),
        noun=Noun(
            lazy_gettext("Receiver of the security log"),
            lazy_gettext("Receivers of the security log"),
            named_by="url",
            order=90,
            page="console.show_receiver",
            list_page="console.show_receiver",
            event="security_stream",
        ),
        sample={"url": "https://{mark}.example/", "secret": Sample.ENCRYPTED, "is_enabled": False},
    )

    account_id: Mapped[str] = mapped_column(
        Id, sa.ForeignKey("accounts.id", name="fk_security_streams_account_id"), primary_key=True
    )
    id: Mapped[str] = mapped_column(Id, primary_key=True, default=new_id)
    url: Mapped[str] = mapped_column(Text)
    secret: Mapped[str] = mapped_column(Text)  # encrypted
    is_enabled: Mapped[bool] = mapped_column(default=True)
    sent_number: Mapped[int] = mapped_column(sa.BigInteger, default=0)
    """The receiver has confirmed all events up to this one."""
    attempts: Mapped[int] = mapped_column(default=0)
    """Failed requests since the last success."""
    due_at: Mapped[datetime] = mapped_column(UtcDateTime, default=clock.now)
    failing_since: Mapped[datetime | None] = mapped_column(UtcDateTime)
    last_error: Mapped[str | None] = mapped_column(Text)
    last_sent_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=clock.now)
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime, default=clock.now)
    paused_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """Since its owner is no admin any more; until an admin takes it over, events wait."""
    created_by: Mapped[str | None] = mapped_column(Id)
    """The owner, who set or took over the receiver last; null before migration 0060."""

    @property
    def owner_id(self) -> str | None:
        """The admin, or service user, with whose rights it ends."""
        return self.created_by


class SecurityStart(ChainStart):
    """The start of an account's chain of the security log."""

    __tablename__ = "security_starts"
    __policy__ = TablePolicy(
        audit=NotAudited("a log itself; cutting it writes an event"),
        bundle=Bundled(order=40, is_log=True),
        on_close=OnClose.KEPT,
    )


class SecurityHead(Base):
    """The end of an account's chain; its row lock orders the sealing of events."""

    __tablename__ = "security_heads"
    __policy__ = TablePolicy(
        audit=NotAudited("a log itself"),
        bundle=NotBundled("follows from the security log"),
        on_close=OnClose.KEPT,
    )

    account_id: Mapped[str] = mapped_column(Id, primary_key=True)
    number: Mapped[int] = mapped_column(sa.BigInteger, default=0)
    checksum: Mapped[str] = mapped_column(Text)
    checkpoint: Mapped[str | None] = mapped_column(Text)
    """The newest signed checkpoint, a JSON object."""
