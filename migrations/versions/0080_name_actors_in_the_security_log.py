"""name whoever acts in the security log, inside the chain

Revision ID: 0080
Revises: 0079
Create Date: 2026-11-30 11:50:00.000000
"""

from __future__ import annotations

from types import ModuleType

import sqlalchemy as sa
from alembic import context, op

from migrations.support.types import Text

revision = "0080"
down_revision = "0079"
branch_labels = None
depends_on = None

NAMING = ("actor_kind", "actor_id", "actor_name")
TABLES = ("security_pending", "security_events")


def upgrade() -> None:
    """Apply the revision; what processes of the version before write has no actor."""
    for table in TABLES:
        op.add_column(table, sa.Column("digest_version", sa.BigInteger()))
        for name in NAMING:
            op.add_column(table, sa.Column(name, Text))
    op.create_index(
        "ix_security_events_actor", "security_events", ["account_id", "actor_id", "number"]
    )
    former = _former()
    fixed = (*former.FIXED, "digest_version", "actor_kind", "actor_id")
    _guard(fixed, (*former.ACTOR, "actor_name"))


def downgrade() -> None:
    """Revert the revision; events that name what acted no longer verify."""
    _guard(_former().FIXED, _former().ACTOR)
    op.drop_index("ix_security_events_actor", table_name="security_events")
    for table in TABLES:
        for name in reversed(NAMING):
            op.drop_column(table, name)
        op.drop_column(table, "digest_version")


def _former() -> ModuleType:
    module: ModuleType = context.script.get_revision("0048").module
    return module


def _guard(fixed: tuple[str, ...], actor: tuple[str, ...]) -> None:
    """Have the database refuse changes of these columns, but for erasures."""
    message = _former().MESSAGE
    if op.get_bind().dialect.name == "postgresql":
        is_erasure = _former()._is_erasure("IS DISTINCT FROM", fixed, actor)
        op.execute(
            "CREATE OR REPLACE FUNCTION protect_security_events() RETURNS trigger"
            f" LANGUAGE plpgsql AS $$ BEGIN IF TG_OP = 'UPDATE' THEN IF {is_erasure}"
            f" THEN RETURN NEW; END IF; END IF; RAISE EXCEPTION '{message}'; END $$"
        )
        return
    op.execute("DROP TRIGGER security_events_update")
    op.execute(
        "CREATE TRIGGER security_events_update BEFORE UPDATE ON security_events"
        f" WHEN NOT ({_former()._is_erasure('IS NOT', fixed, actor)})"
        f" BEGIN SELECT RAISE(ABORT, '{message}'); END"
    )
