"""Saved views of lists."""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from app import clock
from app.db import Base
from app.db.policy import Bundled, NotAudited, Sample, TablePolicy
from app.db.types import Id, Text, UtcDateTime
from app.ids import new_id
from app.types import JSONObject


class SavedView(Base):
    """The filter, sort order, columns and their widths of a list of records, under a name."""

    __tablename__ = "saved_views"
    __table_args__ = (
        sa.ForeignKeyConstraint(
            ["account_id", "user_id"], ["users.account_id", "users.id"], ondelete="CASCADE"
        ),
        sa.UniqueConstraint("account_id", "user_id", "collection_id", "name"),
    )
    __policy__ = TablePolicy(
        audit=NotAudited("settings of the console's lists, which change no data"),
        bundle=Bundled(order=210),
        id_names=("view_id",),
        sample={
            "collection_id": Sample.COLLECTION_ID,
            "filter": None,
            "state": {"columns": ["{mark}"]},
            "is_default": False,
        },
    )

    account_id: Mapped[str] = mapped_column(Id, primary_key=True)  # the user's
    id: Mapped[str] = mapped_column(Id, primary_key=True, default=new_id)
    user_id: Mapped[str] = mapped_column(Id)
    collection_id: Mapped[str] = mapped_column(Id)
    name: Mapped[str] = mapped_column(Text)
    filter: Mapped[str | None] = mapped_column(Text)  # an expression
    state: Mapped[JSONObject] = mapped_column(sa.JSON)  # conditions, sort, columns and their widths
    is_shared: Mapped[bool]
    is_default: Mapped[bool]
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=clock.now)
