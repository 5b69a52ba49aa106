"""The jobs that bring accounts up to a version of a template."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from app import clock
from app.db import Base
from app.db.policy import Audited, NotBundled, Noun, Placement, TablePolicy
from app.db.types import Id, Text, UtcDateTime
from app.ids import new_id
from app.types import JSONObject
from app.web.languages import lazy_gettext


class TemplateJobState(StrEnum):
    """The state of a job."""

    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    """It has ended before it had seen all accounts."""


class TemplateJob(Base):
    """A job that brings accounts up, and how far it is; its counts survive a kill."""

    __tablename__ = "template_jobs"
    __table_args__ = (sa.Index("ix_template_jobs_template", "template", "id"),)
    __policy__ = TablePolicy(
        audit=Audited(
            chain=None,
            ignored=(
                *("status", "after_id", "total", "done", "kept", "failed", "failures"),
                *("error", "finished_at"),
            ),
        ),
        bundle=NotBundled("work of the instance"),
        placement=Placement.SHARED,
        noun=Noun(
            lazy_gettext("Upgrade of accounts"),
            lazy_gettext("Upgrades of accounts"),
            named_by="template",
            order=240,
            list_page="console.show_account_templates",
        ),
        id_names=("template_job_id",),
    )

    id: Mapped[str] = mapped_column(Id, primary_key=True, default=new_id)
    template: Mapped[str] = mapped_column(Text)
    template_version: Mapped[int]
    accounts: Mapped[str | list[str]] = mapped_column(sa.JSON)
    """`all`, or slugs."""
    force: Mapped[bool]
    requested_by: Mapped[str] = mapped_column(Id)
    status: Mapped[str] = mapped_column(Text, default=TemplateJobState.PENDING)
    after_id: Mapped[str] = mapped_column(Text, default="")
    """The last account that was looked at: they come in the order of their ids."""
    total: Mapped[int] = mapped_column(default=0)
    done: Mapped[int] = mapped_column(default=0)
    kept: Mapped[int] = mapped_column(default=0)
    """The accounts, among those that are done, in which something changed by hand stayed."""
    failed: Mapped[int] = mapped_column(default=0)
    failures: Mapped[list[JSONObject]] = mapped_column(sa.JSON, default=list)
    error: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=clock.now)
    finished_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
