"""The meters and their tables: flows are counted per day (UTC), stocks have a level."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from app.db import Base
from app.db.policy import NotAudited, NotBundled, TablePolicy
from app.db.types import Id, Text

LIVE = "now"
"""In place of a day: the current level of a stock that triggers count."""
REQUESTS, DELIVERIES, STEPS, MAILS = "requests", "deliveries", "workflow_steps", "mails"
RECORDS, ROW_BYTES, FILE_BYTES = "records", "row_bytes", "file_bytes"
FLOWS = (REQUESTS, DELIVERIES, STEPS, MAILS)
STOCKS = (RECORDS, ROW_BYTES, FILE_BYTES)
METERS = (*FLOWS, *STOCKS)


class UsageCount(Base):
    """A part of an account's count on a day (`YYYY-MM-DD`); the parts of all slots add up.

    Concurrent writers use different slots. A process has one of its own for requests.
    """

    __tablename__ = "usage_counts"
    __table_args__ = (sa.Index("ix_usage_counts_day", "day", "meter"),)
    __policy__ = TablePolicy(
        audit=NotAudited("counts of what is logged or audited elsewhere"),
        bundle=NotBundled("what the instance measured"),
    )

    account_id: Mapped[str] = mapped_column(Id, primary_key=True)
    meter: Mapped[str] = mapped_column(Text, primary_key=True)
    day: Mapped[str] = mapped_column(Text, primary_key=True)
    slot: Mapped[str] = mapped_column(Text, primary_key=True)
    amount: Mapped[int] = mapped_column(sa.BigInteger)


class UsageNotice(Base):
    """A mail about a quota that was sent in a period: a day, or a month for stocks.

    Or the event of a refusal, whose period is an hour.
    """

    __tablename__ = "usage_notices"
    __policy__ = TablePolicy(
        audit=NotAudited("mails about quotas; the quotas are in the account's entries"),
        bundle=NotBundled("mails about usage that were sent"),
    )

    account_id: Mapped[str] = mapped_column(Id, primary_key=True)
    meter: Mapped[str] = mapped_column(Text, primary_key=True)
    period: Mapped[str] = mapped_column(Text, primary_key=True)
    percent: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)


COUNTS: Any = UsageCount.__table__
NOTICES: Any = UsageNotice.__table__
