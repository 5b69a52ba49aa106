"""join texts by an immutable function

Revision ID: 0055
Revises: 0054
Create Date: 2026-11-27 03:45:00.000000
"""

from alembic import op

revision = "0055"
down_revision = "0054"
branch_labels = None
depends_on = None

# PostgreSQL's own concat() is only STABLE, as it writes values of any type. Citus takes no such
# function in RETURNING.
JOINED = """
CREATE FUNCTION atrium_joined(VARIADIC parts text[]) RETURNS text
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN RETURN array_to_string(parts, ''); END $$
"""


def upgrade() -> None:
    """Apply the revision."""
    if op.get_bind().dialect.name == "postgresql":
        op.execute(JOINED)


def downgrade() -> None:
    """Revert the revision."""
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP FUNCTION atrium_joined")
