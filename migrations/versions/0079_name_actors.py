"""name whoever acts in the audit log, inside the chain

Revision ID: 0079
Revises: 0078
Create Date: 2026-11-30 11:40:00.000000
"""

from __future__ import annotations

from types import ModuleType

import sqlalchemy as sa
from alembic import context, op

from migrations.support.types import Text

revision = "0079"
down_revision = "0078"
branch_labels = None
depends_on = None

NAMING = ("actor_kind", "actor_id", "actor_name")
TABLES = ("audit_changes", "audit_pending", "feed_changes")
NOT_USERS = "actor_kind <> 'user'"
INDEXES = {
    "ix_audit_changes_actor": ["actor_id"],
    "ix_audit_changes_actor_kind": ["actor_kind"],
    "ix_audit_changes_account_actor_kind": ["account_id", "actor_kind"],
}
# A process of the version before would erase an actor, but leave the name.
HALF_ERASED = "(NEW.actor_salts IS NULL AND NEW.actor_name IS NOT NULL)"


def upgrade() -> None:
    """Apply the revision; what processes of the version before write has no actor."""
    if op.get_bind().dialect.name == "postgresql":
        # In the order in which writers lock them.
        op.execute("LOCK TABLE audit_heads, audit_changes IN ACCESS EXCLUSIVE MODE")
    for table in TABLES:
        if table != "feed_changes":
            op.add_column(table, sa.Column("digest_version", sa.BigInteger()))
        for name in NAMING:
            op.add_column(table, sa.Column(name, Text))
    for name, columns in INDEXES.items():
        where = sa.text(NOT_USERS)
        place = [*columns, "occurred_at", "first_id"]
        op.create_index(name, "audit_changes", place, sqlite_where=where, postgresql_where=where)
    former, added = _former(), ("digest_version", "actor_kind", "actor_id")
    erasable = (*former.ERASABLE, "unchanged", "actor_name")
    _guard(erasable, (*former.FIXED, "size", *added), HALF_ERASED)
    _show(", ".join(("", *(f"c.{name}" for name in ("digest_version", *NAMING)))))


def downgrade() -> None:
    """Revert the revision; entries that name what acted no longer verify."""
    op.execute("DROP VIEW audit_log")
    _guard((*_former().ERASABLE, "unchanged"), (*_former().FIXED, "size"))
    for name in INDEXES:
        op.drop_index(name, table_name="audit_changes")
    for table in TABLES:
        for name in reversed(NAMING):
            op.drop_column(table, name)
        if table != "feed_changes":
            op.drop_column(table, "digest_version")
    _show("")


def _former() -> ModuleType:
    module: ModuleType = context.script.get_revision("0030").module
    return module


def _show(more: str) -> None:
    """Let the view of single entries have more columns, behind the others."""
    former = _former()
    if op.get_bind().dialect.name == "postgresql":
        parts = {**former.ON_POSTGRES, "digests": former.ON_POSTGRES["digests"] + more}
        text = former.VIEW.format(**parts).replace("CREATE VIEW", "CREATE OR REPLACE VIEW")
        op.execute(text)
        if not more:
            op.execute(
                "CREATE TRIGGER audit_log_insert INSTEAD OF INSERT ON audit_log"
                " FOR EACH ROW EXECUTE FUNCTION insert_audit_entry()"
            )
        return
    op.execute("DROP VIEW IF EXISTS audit_log")
    op.execute(former.VIEW.format(**{**former.ON_SQLITE, "digests": more}).replace(":", "\\:"))


def _guard(erasable: tuple[str, ...], fixed: tuple[str, ...], *more: str) -> None:
    """Have the database refuse changes of these columns, but for erasures."""
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP TRIGGER audit_changes_update ON audit_changes")
        condition = " OR ".join((_former()._changes("IS DISTINCT FROM", erasable, fixed), *more))
        op.execute(
            "CREATE TRIGGER audit_changes_update BEFORE UPDATE ON audit_changes FOR EACH ROW"
            f" WHEN ({condition}) EXECUTE FUNCTION refuse_audit_change()"
        )
    else:
        op.execute("DROP TRIGGER audit_changes_update")
        condition = " OR ".join((_former()._changes("IS NOT", erasable, fixed), *more))
        op.execute(
            "CREATE TRIGGER audit_changes_update BEFORE UPDATE ON audit_changes"
            f" WHEN {condition}"
            " BEGIN SELECT RAISE(ABORT, 'audit_changes is append-only'); END"
        )
