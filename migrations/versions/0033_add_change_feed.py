"""add the change feed

Revision ID: 0033
Revises: 0032
Create Date: 2026-11-25 22:00:00.000000
"""

from types import ModuleType

import sqlalchemy as sa
from alembic import context, op

from migrations.support.types import Text, UtcDateTime

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None

APPEND_ARGUMENTS = (
    "account text, told text[], joined text, names text, olds text, news text,"
    " value_salts bytea, actor_salt bytea, unchanged_values text, characters bigint"
)
FEED_ARGUMENTS = (
    "account text, change_operation text, changed_table text, changed_record text, actor text,"
    " moment timestamptz, characters bigint, names text, olds text, news text,"
    " unchanged_values text"
)
# The same lock as for audited changes, so that numbers ascend in the order of commits.
APPEND_TO_FEED = f"""
CREATE FUNCTION append_feed_change({FEED_ARGUMENTS})
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM lock_audit_head(account, moment);
  INSERT INTO feed_changes (
    account_id, change, operation, table_name, record_id, user_id, occurred_at, size,
    columns, old_values, new_values, unchanged)
  VALUES (
    account, nextval('audit_log_ids'), change_operation, changed_table, changed_record, actor,
    moment, characters, names, olds, news, unchanged_values);
END $$
"""  # noqa: S608 - constants


def upgrade() -> None:
    """Apply the revision. The feed begins here: earlier changes lack their records."""
    if op.get_bind().dialect.name == "postgresql":
        # In the order in which writers lock them.
        op.execute("LOCK TABLE audit_heads, audit_changes IN ACCESS EXCLUSIVE MODE")
    op.add_column("audit_changes", sa.Column("unchanged", Text))
    op.add_column("audit_changes", sa.Column("size", sa.BigInteger()))
    op.add_column(
        "audit_heads",
        sa.Column("expired_change", sa.BigInteger(), nullable=False, server_default="0"),
    )
    op.execute("UPDATE audit_heads SET expired_change = last_id")
    op.create_table(
        "feed_changes",
        sa.Column("account_id", Text, nullable=False),
        sa.Column("change", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("operation", Text, nullable=False),
        sa.Column("table_name", Text, nullable=False),
        sa.Column("record_id", Text, nullable=False),
        sa.Column("user_id", Text, nullable=False),
        sa.Column("occurred_at", UtcDateTime(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("columns", Text, nullable=False),
        sa.Column("old_values", Text),
        sa.Column("new_values", Text),
        sa.Column("unchanged", Text),
        sa.PrimaryKeyConstraint("account_id", "change", name=op.f("pk_feed_changes")),
    )
    op.create_index("ix_feed_changes_occurred_at", "feed_changes", ["occurred_at"])
    _guard((*_former().ERASABLE, "unchanged"), (*_former().FIXED, "size"))
    if op.get_bind().dialect.name == "postgresql":
        # Beside the function that older versions call until they are restarted.
        op.execute(_append())
        op.execute(APPEND_TO_FEED)


def downgrade() -> None:
    """Revert the revision."""
    if op.get_bind().dialect.name == "postgresql":
        op.execute(f"DROP FUNCTION append_feed_change({FEED_ARGUMENTS})")
        op.execute(f"DROP FUNCTION append_audit_change({APPEND_ARGUMENTS})")
    _guard(_former().ERASABLE, _former().FIXED)
    op.drop_table("feed_changes")
    op.drop_column("audit_heads", "expired_change")
    op.drop_column("audit_changes", "size")
    op.drop_column("audit_changes", "unchanged")


def _former() -> ModuleType:
    module: ModuleType = context.script.get_revision("0030").module
    return module


def _append() -> str:
    """The function of revision 0030 with one more argument and column."""
    text: str = _former().APPEND
    for before, after in (
        (_former().SIGNATURE, APPEND_ARGUMENTS),
        (
            "salts, actor_salts, ids, checksum)",
            "salts, actor_salts, unchanged, size, ids, checksum)",
        ),
        ("value_salts, actor_salt,\n", "value_salts, actor_salt, unchanged_values, characters,\n"),
    ):
        assert before in text  # noqa: S101
        text = text.replace(before, after)
    return text


def _guard(erasable: tuple[str, ...], fixed: tuple[str, ...]) -> None:
    """Have the database refuse changes of `unchanged`, too, but for its erasure."""
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP TRIGGER audit_changes_update ON audit_changes")
        condition = _former()._changes("IS DISTINCT FROM", erasable, fixed)
        op.execute(
            "CREATE TRIGGER audit_changes_update BEFORE UPDATE ON audit_changes FOR EACH ROW"
            f" WHEN ({condition}) EXECUTE FUNCTION refuse_audit_change()"
        )
    else:
        op.execute("DROP TRIGGER audit_changes_update")
        op.execute(
            "CREATE TRIGGER audit_changes_update BEFORE UPDATE ON audit_changes"
            f" WHEN {_former()._changes('IS NOT', erasable, fixed)}"
            " BEGIN SELECT RAISE(ABORT, 'audit_changes is append-only'); END"
        )
