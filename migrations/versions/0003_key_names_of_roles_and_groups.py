"""key names of roles and groups

Revision ID: 0003
Revises: 0002
Create Date: 2026-11-21 15:40:00.000000
"""

import unicodedata
from collections.abc import Iterator

import sqlalchemy as sa
from alembic import op

from migrations.support.types import Text

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

ROLES = sa.table("roles", *map(sa.column, ("id", "name", "name_key", "created_at")))
GROUPS = sa.table("groups", *map(sa.column, ("account_id", "id", "name", "name_key", "created_at")))
KEYED = (ROLES, ("id",), ()), (GROUPS, ("account_id", "id"), ("account_id",))


def upgrade() -> None:
    """Apply the revision."""
    for table, primary, within in KEYED:
        op.add_column(table.name, sa.Column("name_key", Text, nullable=False, server_default=""))
        for row, key in _keyed(table, within):
            mine = (table.c[name] == getattr(row, name) for name in primary)
            op.execute(sa.update(table).where(*mine).values(name_key=key))
        columns = [*within, "name_key"]
        op.create_index(f"uq_{table.name}_{'_'.join(columns)}", table.name, columns, unique=True)


def _keyed(table: sa.TableClause, within: tuple[str, ...]) -> Iterator[tuple[sa.Row, str]]:
    """Yield each row with its key; of names that differ only in case, the oldest gets it."""
    seen = set()
    rows = op.get_bind().execute(sa.select(table).order_by(table.c.created_at, table.c.id))
    for row in rows.all():
        key = _key(row.name)
        place = (*(getattr(row, name) for name in within), key)
        yield row, f"{key} ({row.id})" if place in seen else key
        seen.add(place)


def _key(name: str) -> str:
    shown = (one for one in name if unicodedata.category(one) != "Cf")
    return unicodedata.normalize("NFKC", "".join(shown)).casefold()


def downgrade() -> None:
    """Revert the revision."""
    for table, _, within in reversed(KEYED):
        op.drop_index(f"uq_{table.name}_{'_'.join([*within, 'name_key'])}", table_name=table.name)
        op.drop_column(table.name, "name_key")
