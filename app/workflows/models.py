"""Workflow, version, schedule, instance, step log, subscription.

Only workflows have a foreign key to their account: there are many instances and logs, and a job
removes those of deleted workflows and closed accounts.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from app import clock
from app.db import Base, partial_index
from app.db.functions import now_unless_set
from app.db.policy import Audited, Bundled, NotAudited, NotBundled, Noun, Sample, TablePolicy
from app.db.types import Id, Json, Text, UtcDateTime
from app.ids import new_id
from app.jobs import leases
from app.types import JSONObject
from app.web.languages import lazy_gettext

WORKFLOW, HOOK = "workflow", "hook"
LARGEST_CONTEXT = 256 * 2**10  # bytes of JSON


class InstanceState(StrEnum):
    """The state of an instance, or of an attempt of one of its steps."""

    PENDING = "pending"
    RUNNING = "running"
    WAITING = "waiting"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Trigger(StrEnum):
    EVENT = "event"
    SCHEDULE = "schedule"
    MANUAL = "manual"
    WEBHOOK = "webhook"


# Plain texts, as they are keys of JSON objects.
STATES = tuple(state.value for state in InstanceState)
ACTIVE = STATES[: STATES.index(InstanceState.COMPLETED)]
LOG_STATES = STATES[STATES.index(InstanceState.RUNNING) :]  # an attempt is not recorded before
TRIGGERS = tuple(trigger.value for trigger in Trigger)


class Workflow(Base):
    """The current definition of a workflow or hook."""

    __tablename__ = "workflows"
    __table_args__ = (
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"]),
        sa.Index("ix_workflows_token_key", "account_id", "token_key", unique=True),
    )
    __policy__ = TablePolicy(
        # Headers and URLs in steps may contain secrets.
        audit=Audited(hidden=("steps", "token", "token_key")),
        bundle=Bundled(order=180),
        encrypted=("token",),
        encrypted_json=("steps",),
        noun=Noun(
            lazy_gettext("Workflow"),
            lazy_gettext("Workflows"),
            named_by="name",
            order=130,
            page="console.show_workflow",
            list_page="console.show_workflows",
        ),
        id_names=("workflow_id",),
        sample={
            "kind": "workflow",
            "trigger_type": "manual",
            "trigger": {"type": "manual"},
            "steps": Sample.STEPS,
            "condition": None,
            "token": None,
            "token_key": None,
        },
    )

    account_id: Mapped[str] = mapped_column(Id, primary_key=True)
    id: Mapped[str] = mapped_column(Id, primary_key=True, default=new_id)
    kind: Mapped[str] = mapped_column(Text, default=WORKFLOW)
    name: Mapped[str] = mapped_column(Text)
    description: Mapped[str | None] = mapped_column(Text)
    trigger_type: Mapped[str] = mapped_column(Text)
    trigger: Mapped[JSONObject] = mapped_column(sa.JSON)
    steps: Mapped[list[JSONObject]] = mapped_column(Json)  # headers: values encrypted
    condition: Mapped[str | None] = mapped_column(Text)  # of a hook
    enabled: Mapped[bool] = mapped_column(default=True)
    version: Mapped[int] = mapped_column(default=1)
    token: Mapped[str | None] = mapped_column(Text)  # encrypted
    token_key: Mapped[str | None] = mapped_column(Text)  # its digest, for look-up
    owner_id: Mapped[str] = mapped_column(Id)
    owner_home: Mapped[str] = mapped_column(Id)
    created_by: Mapped[str | None] = mapped_column(Id)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=clock.now)
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime, default=clock.now)


class WorkflowVersion(Base):
    """The steps of a workflow's version; instances keep the version that they started with."""

    __tablename__ = "workflow_versions"
    __policy__ = TablePolicy(
        audit=NotAudited("steps of older versions, which are in their workflow's entries"),
        bundle=Bundled(order=190),
        encrypted_json=("steps",),
        sample={"steps": Sample.STEPS, "awaits": []},
    )

    account_id: Mapped[str] = mapped_column(Id, primary_key=True)
    workflow_id: Mapped[str] = mapped_column(Id, primary_key=True)
    version: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    steps: Mapped[list[JSONObject]] = mapped_column(sa.JSON)  # headers: values encrypted
    awaits: Mapped[list[str]] = mapped_column(sa.JSON)  # "event collection" of its wait_events
    owner_id: Mapped[str] = mapped_column(Id)  # the steps run with this user's rights
    owner_home: Mapped[str] = mapped_column(Id)  # the owner's account
    saved_at: Mapped[datetime | None] = mapped_column(UtcDateTime)  # null for older versions


class WorkflowSchedule(Base):
    """The next and the last due time of a workflow; whoever advances it has fired it."""

    __tablename__ = "workflow_schedules"
    __table_args__ = (sa.Index("ix_workflow_schedules_next_at", "next_at"),)
    __policy__ = TablePolicy(
        audit=NotAudited("next run times, derived from definitions"),
        bundle=Bundled(order=200, is_copied=False),
        sample={"cron": "0 4 * * *", "next_at": Sample.LATER},
    )

    account_id: Mapped[str] = mapped_column(Id, primary_key=True)
    workflow_id: Mapped[str] = mapped_column(Id, primary_key=True)
    cron: Mapped[str] = mapped_column(Text)  # five fields, also for an alias
    timezone: Mapped[str | None] = mapped_column(Text, sort_order=1)  # null: UTC
    next_at: Mapped[datetime] = mapped_column(UtcDateTime)
    last_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class WorkflowInstance(Base):
    """One run. `position` and `context` are JSON: the current steps and their data."""

    __tablename__ = "workflow_instances"
    __table_args__ = (
        # Partial and covering: workers skip many rows of accounts at their limit.
        partial_index(
            "ix_workflow_instances_due",
            "due_at",
            "account_id",
            "status",
            "id",
            where="due_at IS NOT NULL",
        ),
        sa.Index("ix_workflow_instances_status", "account_id", "status", "id"),
        sa.Index("ix_workflow_instances_log", "account_id", "workflow_id", "id"),
        partial_index(
            "ix_workflow_instances_resumed",
            "account_id",
            "resumed_at",
            "status",
            where="resumed_at IS NOT NULL",
        ),
    )
    __policy__ = TablePolicy(
        audit=NotAudited("runs with their logs; their changes are audited"),
        bundle=NotBundled("runs end where they began: moved, they would act twice"),
        id_names=("instance_id",),
        sample={
            "kind": "workflow",
            "trigger_type": "manual",
            "status": "failed",
            "started_at": Sample.NOW,
            "completed_at": Sample.NOW,
            "resumed_at": Sample.LONG_AGO,
            "position": "{}",
            "context": '{"trigger":{"value":"{mark}"}}',
        },
    )

    account_id: Mapped[str] = mapped_column(Id, primary_key=True)
    id: Mapped[str] = mapped_column(Id, primary_key=True, default=new_id)
    workflow_id: Mapped[str] = mapped_column(Id)
    kind: Mapped[str] = mapped_column(Text)
    version: Mapped[int]
    trigger_type: Mapped[str] = mapped_column(Text)
    status: Mapped[str] = mapped_column(Text, default=InstanceState.PENDING)
    position: Mapped[str] = mapped_column(Text)
    context: Mapped[str] = mapped_column(Text)
    current_step: Mapped[str | None] = mapped_column(Text)
    error_message: Mapped[str | None] = mapped_column(Text)
    depth: Mapped[int] = mapped_column(default=1)  # trigger depth
    root_id: Mapped[str | None] = mapped_column(Id)  # shared by all instances that one event led to
    holds_pii: Mapped[bool] = mapped_column(default=False)
    due_at: Mapped[datetime | None] = mapped_column(UtcDateTime)  # or the end of a worker's lease
    claim: Mapped[int] = mapped_column(default=0)  # number of claims
    nudges: Mapped[int] = mapped_column(default=0)  # number of awaited events that arrived
    resumed_at: Mapped[datetime | None] = mapped_column(UtcDateTime)  # of the last bulk resume
    started_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    completed_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=clock.now)


class WorkflowStepLog(Base):
    """One attempt of a step. `place` includes loop iterations and the visit."""

    __tablename__ = "workflow_step_logs"
    __table_args__ = (sa.Index("ix_workflow_step_logs_instance", "account_id", "instance_id"),)
    __policy__ = TablePolicy(
        audit=NotAudited("a log itself"),
        bundle=NotBundled("logs of runs"),
        sample={
            "step_type": "wait_delay",
            "status": "failed",
            "completed_at": Sample.NOW,
            "input": Sample.JSON,
            "output": Sample.JSON,
        },
    )

    account_id: Mapped[str] = mapped_column(Id, primary_key=True)
    id: Mapped[str] = mapped_column(Id, primary_key=True, default=new_id)
    instance_id: Mapped[str] = mapped_column(Id)
    place: Mapped[str] = mapped_column(Text)
    step_name: Mapped[str] = mapped_column(Text)
    step_type: Mapped[str] = mapped_column(Text)
    status: Mapped[str] = mapped_column(Text)  # running, waiting, completed, failed, cancelled
    attempt: Mapped[int]
    input: Mapped[str | None] = mapped_column(Text)
    output: Mapped[str | None] = mapped_column(Text)
    error_message: Mapped[str | None] = mapped_column(Text)
    started_at: Mapped[datetime] = mapped_column(UtcDateTime)
    completed_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class WorkflowSubscription(Base):
    """The event that an instance waits for; `happened` is the event once it arrived."""

    __tablename__ = "workflow_subscriptions"
    __table_args__ = (
        sa.Index("ix_workflow_subscriptions_event", "account_id", "event"),
        sa.Index("ix_workflow_subscriptions_instance", "account_id", "instance_id"),
    )
    __policy__ = TablePolicy(
        audit=NotAudited("events that instances wait for"),
        bundle=NotBundled("what runs wait for"),
        sample={
            "event": "records.create",
            "collection": Sample.COLLECTION_KEY,
            "condition": None,
            "known": "{}",
            "happened": None,
        },
    )

    account_id: Mapped[str] = mapped_column(Id, primary_key=True)
    id: Mapped[str] = mapped_column(Id, primary_key=True, default=new_id)
    instance_id: Mapped[str] = mapped_column(Id)
    place: Mapped[str] = mapped_column(Text)
    event: Mapped[str] = mapped_column(Text)
    collection: Mapped[str | None] = mapped_column(Text)  # in lower case
    condition: Mapped[str | None] = mapped_column(Text)
    known: Mapped[str] = mapped_column(Text)  # instance values that the condition uses, as JSON
    owner_id: Mapped[str] = mapped_column(Id)
    owner_home: Mapped[str] = mapped_column(Id)
    happened: Mapped[str | None] = mapped_column(Text)


VERSIONS: Any = WorkflowVersion.__table__
SCHEDULES: Any = WorkflowSchedule.__table__
INSTANCES: Any = WorkflowInstance.__table__
LOGS: Any = WorkflowStepLog.__table__
SUBSCRIPTIONS: Any = WorkflowSubscription.__table__
QUEUE = leases.Queue(
    INSTANCES,
    INSTANCES.c.claim,
    on_claim={
        INSTANCES.c.status: InstanceState.RUNNING,
        INSTANCES.c.started_at: now_unless_set(INSTANCES.c.started_at),
    },
    in_work=INSTANCES.c.status == InstanceState.RUNNING,
)
