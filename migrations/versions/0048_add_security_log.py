"""add the security log

Revision ID: 0048
Revises: 0047
Create Date: 2026-11-26 23:50:00.000000
"""

import sqlalchemy as sa
from alembic import op

from migrations.support.types import Id, Text, UtcDateTime

revision = "0048"
down_revision = "0047"
branch_labels = None
depends_on = None

FIXED = ("account_id", "number", "kind", "target_type", "target_id", "path", "user_id")
FIXED += ("occurred_at", "request_id", "values_digest", "actor_digest", "checksum")
VALUES = ("details", "salt")
ACTOR = ("user_email", "user_name", "ip_address", "user_agent", "actor_salt")
MESSAGE = "The security log is append-only."


def upgrade() -> None:
    """Apply the revision."""
    op.create_table(
        "security_pending",
        sa.Column("account_id", Id, nullable=False),
        sa.Column("id", Id, nullable=False),
        *_columns(),
        sa.PrimaryKeyConstraint("account_id", "id", name=op.f("pk_security_pending")),
    )
    op.create_table(
        "security_events",
        sa.Column("account_id", Id, nullable=False),
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        *_columns(),
        sa.Column("salt", Text, nullable=True),
        sa.Column("values_digest", Text, nullable=False),
        sa.Column("actor_salt", Text, nullable=True),
        sa.Column("actor_digest", Text, nullable=False),
        sa.Column("checksum", Text, nullable=False),
        sa.PrimaryKeyConstraint("account_id", "number", name=op.f("pk_security_events")),
    )
    op.create_table(
        "security_heads",
        sa.Column("account_id", Id, nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("checksum", Text, nullable=False),
        sa.Column("checkpoint", Text, nullable=True),
        sa.PrimaryKeyConstraint("account_id", name=op.f("pk_security_heads")),
    )
    for name, columns in {
        "kind": ["account_id", "kind", "number"],
        # The user first: an erasure looks in all accounts.
        "user": ["user_id", "account_id", "number"],
        "target": ["account_id", "target_type", "target_id", "number"],
        "time": ["account_id", "occurred_at"],
    }.items():
        op.create_index(f"ix_security_events_{name}", "security_events", columns)
    if op.get_bind().dialect.name == "postgresql":
        _protect_postgresql()
    else:
        _protect_sqlite()


def downgrade() -> None:
    """Revert the revision."""
    for table in ("security_heads", "security_events", "security_pending"):
        op.drop_table(table)
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP FUNCTION protect_security_events()")


def _columns() -> list[sa.Column]:
    return [
        sa.Column("kind", Text, nullable=False),
        sa.Column("target_type", Text, nullable=False),
        sa.Column("target_id", Text, nullable=False),
        sa.Column("path", Text, nullable=True),
        sa.Column("user_id", Text, nullable=False),
        sa.Column("occurred_at", UtcDateTime(), nullable=False),
        sa.Column("user_email", Text, nullable=True),
        sa.Column("user_name", Text, nullable=True),
        sa.Column("ip_address", Text, nullable=True),
        sa.Column("user_agent", Text, nullable=True),
        sa.Column("request_id", Text, nullable=True),
        sa.Column("details", Text, nullable=True),
    ]


def _is_erasure(
    differs: str, columns: tuple[str, ...] = FIXED, actor: tuple[str, ...] = ACTOR
) -> str:
    """The condition that an UPDATE only empties values or the actor, with their salt."""
    fixed = " OR ".join(f"NEW.{name} {differs} OLD.{name}" for name in columns)
    emptied = []
    for names in (VALUES, actor):
        same = " AND ".join(f"NOT (NEW.{name} {differs} OLD.{name})" for name in names)
        empty = " AND ".join(f"NEW.{name} IS NULL" for name in names)
        emptied.append(f"(({same}) OR ({empty}))")
    return f"NOT ({fixed}) AND {' AND '.join(emptied)}"


def _protect_postgresql() -> None:
    op.execute(
        "CREATE FUNCTION protect_security_events() RETURNS trigger LANGUAGE plpgsql AS $$"
        f" BEGIN IF TG_OP = 'UPDATE' THEN IF {_is_erasure('IS DISTINCT FROM')} THEN RETURN NEW;"
        f" END IF; END IF; RAISE EXCEPTION '{MESSAGE}'; END $$"
    )
    call = "EXECUTE FUNCTION protect_security_events()"
    op.execute(
        "CREATE TRIGGER security_events_change BEFORE UPDATE OR DELETE ON security_events"
        f" FOR EACH ROW {call}"
    )
    op.execute(
        "CREATE TRIGGER security_events_truncate BEFORE TRUNCATE ON security_events"
        f" FOR EACH STATEMENT {call}"
    )


def _protect_sqlite() -> None:
    refuse = f"BEGIN SELECT RAISE(ABORT, '{MESSAGE}'); END"
    op.execute(
        "CREATE TRIGGER security_events_update BEFORE UPDATE ON security_events"
        f" WHEN NOT ({_is_erasure('IS NOT')}) {refuse}"
    )
    op.execute(f"CREATE TRIGGER security_events_delete BEFORE DELETE ON security_events {refuse}")
