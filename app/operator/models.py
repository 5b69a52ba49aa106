"""Events of all accounts, and the last number that was given to one (docs/events.md).

Events outlive what they describe, so there are no foreign keys.
"""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from app.db import Base, partial_index
from app.db.policy import NotAudited, NotBundled, OnClose, TablePolicy
from app.db.types import Id, Json, Text, UtcDateTime
from app.types import JSONObject


class OperatorEvent(Base):
    """Something that happened in an account, as the transaction of the change stored it."""

    __tablename__ = "operator_events"
    __table_args__ = (
        sa.Index("ix_operator_events_number", "number"),
        sa.Index("ix_operator_events_account", "account_id", "number"),
        sa.Index("ix_operator_events_at", "at"),
        partial_index("ix_operator_events_pending", "position", where="number IS NULL"),
    )
    __policy__ = TablePolicy(
        audit=NotAudited("events; the changes that they tell of are audited"),
        bundle=NotBundled("events of one instance, for those who follow it"),
        on_close=OnClose.KEPT,
        sample={"type": "user.created", "number": None, "position": 1, "depth": 0},
    )

    account_id: Mapped[str] = mapped_column(Id, primary_key=True)
    id: Mapped[str] = mapped_column(Id, primary_key=True)
    position: Mapped[int] = mapped_column(sa.BigInteger, sa.Identity())
    """Ascends from an event to all that begins after its commit."""
    number: Mapped[int | None] = mapped_column(sa.BigInteger)
    """Ascends in the order of commits, over all accounts; null until the event is sealed."""
    type: Mapped[str] = mapped_column(Text)
    at: Mapped[datetime] = mapped_column(UtcDateTime)
    actor: Mapped[JSONObject] = mapped_column(Json)
    data: Mapped[JSONObject] = mapped_column(Json)
    depth: Mapped[int]
    """The trigger depth of the change, for the receivers of webhooks."""


class OperatorHead(Base):
    """The end of the events: one row of the system account, whose lock is held to give numbers."""

    __tablename__ = "operator_heads"
    __policy__ = TablePolicy(
        audit=NotAudited("numbers of events"),
        bundle=NotBundled("numbers of events"),
        on_close=OnClose.KEPT,
    )

    account_id: Mapped[str] = mapped_column(Id, primary_key=True)
    number: Mapped[int] = mapped_column(sa.BigInteger)
    """The newest number."""
    expired: Mapped[int] = mapped_column(sa.BigInteger)
    """Events up to this number are not kept any more."""


EVENTS = Base.metadata.tables[OperatorEvent.__tablename__]
HEADS = Base.metadata.tables[OperatorHead.__tablename__]
IS_PENDING = EVENTS.c.number.is_(None)
