"""find workflows by account and token

Revision ID: 0017
Revises: 0016
Create Date: 2026-11-22 02:45:00.000000
"""

from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the revision."""
    # Tokens name their account from now on; one that does not is made anew with the next save.
    op.execute("UPDATE workflows SET token = NULL, token_key = NULL")
    op.drop_index("ix_workflows_token_key", "workflows")
    op.create_index("ix_workflows_token_key", "workflows", ["account_id", "token_key"], unique=True)


def downgrade() -> None:
    """Take the revision back."""
    op.drop_index("ix_workflows_token_key", "workflows")
    op.create_index("ix_workflows_token_key", "workflows", ["token_key"], unique=True)
