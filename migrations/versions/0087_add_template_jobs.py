"""add the jobs that bring accounts up to a version of a template

Revision ID: 0087
Revises: 0086
Create Date: 2026-11-30 12:00:00.000000
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from migrations.support.types import Id, Text, UtcDateTime

revision = "0087"
down_revision = "0086"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the revision."""
    op.create_table(
        "template_jobs",
        sa.Column("id", Id, nullable=False),
        sa.Column("template", Text, nullable=False),
        sa.Column("template_version", sa.Integer(), nullable=False),
        sa.Column("accounts", sa.JSON(), nullable=False),
        sa.Column("force", sa.Boolean(), nullable=False),
        sa.Column("requested_by", Id, nullable=False),
        sa.Column("status", Text, nullable=False),
        sa.Column("after_id", Text, nullable=False),
        sa.Column("total", sa.Integer(), nullable=False),
        sa.Column("done", sa.Integer(), nullable=False),
        sa.Column("kept", sa.Integer(), nullable=False),
        sa.Column("failed", sa.Integer(), nullable=False),
        sa.Column("failures", sa.JSON(), nullable=False),
        sa.Column("error", Text),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.Column("finished_at", UtcDateTime),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_template_jobs")),
    )
    op.create_index("ix_template_jobs_template", "template_jobs", ["template", "id"])


def downgrade() -> None:
    """Revert the revision; which jobs there were is lost, what they did stays."""
    op.drop_table("template_jobs")
