"""create workflows

Revision ID: 0013
Revises: 0012
Create Date: 2026-11-21 22:00:00.000000
"""

import sqlalchemy as sa
from alembic import op

from migrations.support.types import Text, UtcDateTime

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def _text(name: str, *, nullable: bool = False) -> sa.Column[str]:
    return sa.Column(name, Text, nullable=nullable)


def _moment(name: str, *, nullable: bool = False) -> sa.Column[object]:
    return sa.Column(name, UtcDateTime(), nullable=nullable)


def _number(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.Integer(), nullable=False)


def upgrade() -> None:
    """Apply the revision."""
    _create_workflows()
    _create_versions_and_schedules()
    _create_instances()
    _create_logs()
    _create_subscriptions()


def _create_workflows() -> None:
    op.create_table(
        "workflows",
        *map(_text, ("account_id", "id", "kind", "name")),
        _text("description", nullable=True),
        _text("trigger_type"),
        sa.Column("trigger", sa.JSON(), nullable=False),
        sa.Column("steps", sa.JSON(), nullable=False),
        _text("condition", nullable=True),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        _number("version"),
        _text("token", nullable=True),
        _text("token_key", nullable=True),
        *map(_text, ("owner_id", "owner_home")),
        _text("created_by", nullable=True),
        *map(_moment, ("created_at", "updated_at")),
        sa.PrimaryKeyConstraint("account_id", "id", name=op.f("pk_workflows")),
        sa.ForeignKeyConstraint(
            ["account_id"], ["accounts.id"], name=op.f("fk_workflows_account_id")
        ),
    )
    op.create_index("ix_workflows_token_key", "workflows", ["token_key"], unique=True)


def _create_versions_and_schedules() -> None:
    key = ("account_id", "workflow_id")
    op.create_table(
        "workflow_versions",
        *map(_text, key),
        _number("version"),
        sa.Column("steps", sa.JSON(), nullable=False),
        sa.Column("awaits", sa.JSON(), nullable=False),
        *map(_text, ("owner_id", "owner_home")),
        sa.PrimaryKeyConstraint(*key, "version", name=op.f("pk_workflow_versions")),
    )
    op.create_table(
        "workflow_schedules",
        *map(_text, (*key, "cron")),
        _moment("next_at"),
        _moment("last_at", nullable=True),
        sa.PrimaryKeyConstraint(*key, name=op.f("pk_workflow_schedules")),
    )
    op.create_index("ix_workflow_schedules_next_at", "workflow_schedules", ["next_at"])


def _create_instances() -> None:
    op.create_table(
        "workflow_instances",
        *map(_text, ("account_id", "id", "workflow_id", "kind")),
        _number("version"),
        *map(_text, ("trigger_type", "status", "position", "context")),
        _text("current_step", nullable=True),
        _text("error_message", nullable=True),
        _number("depth"),
        sa.Column("holds_pii", sa.Boolean(), nullable=False),
        _moment("due_at", nullable=True),
        *map(_number, ("claim", "nudges")),
        _moment("started_at", nullable=True),
        _moment("completed_at", nullable=True),
        _moment("created_at"),
        sa.PrimaryKeyConstraint("account_id", "id", name=op.f("pk_workflow_instances")),
    )
    only = sa.text("due_at IS NOT NULL")
    op.create_index(
        "ix_workflow_instances_due",
        "workflow_instances",
        ["due_at", "account_id", "status", "id"],
        postgresql_where=only,
        sqlite_where=only,
    )
    for name, column in (("status", "status"), ("log", "workflow_id")):
        columns = ["account_id", column, "id"]
        op.create_index(f"ix_workflow_instances_{name}", "workflow_instances", columns)


def _create_logs() -> None:
    op.create_table(
        "workflow_step_logs",
        *map(_text, ("account_id", "id", "instance_id", "place", "step_name", "step_type")),
        _text("status"),
        _number("attempt"),
        *(_text(name, nullable=True) for name in ("input", "output", "error_message")),
        _moment("started_at"),
        _moment("completed_at", nullable=True),
        sa.PrimaryKeyConstraint("account_id", "id", name=op.f("pk_workflow_step_logs")),
    )
    key = ["account_id", "instance_id"]
    op.create_index("ix_workflow_step_logs_instance", "workflow_step_logs", key)


def _create_subscriptions() -> None:
    op.create_table(
        "workflow_subscriptions",
        *map(_text, ("account_id", "id", "instance_id", "place", "event")),
        *(_text(name, nullable=True) for name in ("collection", "condition")),
        *map(_text, ("known", "owner_id", "owner_home")),
        _text("happened", nullable=True),
        sa.PrimaryKeyConstraint("account_id", "id", name=op.f("pk_workflow_subscriptions")),
    )
    for name, column in (("event", "event"), ("instance", "instance_id")):
        columns = ["account_id", column]
        op.create_index(f"ix_workflow_subscriptions_{name}", "workflow_subscriptions", columns)


def downgrade() -> None:
    """Revert the revision."""
    for table in ("subscriptions", "step_logs", "instances", "schedules", "versions"):
        op.drop_table(f"workflow_{table}")
    op.drop_table("workflows")
