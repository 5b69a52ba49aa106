"""add the directory: settings of the instance, and words that find users

Revision ID: 0063
Revises: 0062
Create Date: 2026-11-30 01:20:00.000000
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator

import sqlalchemy as sa
from alembic import op

from migrations.support import row_security
from migrations.support.types import Id, Text

revision = "0063"
down_revision = "0062"
branch_labels = None
depends_on = None

PAGE = 1000
SIMPLE = str.maketrans({"\u0131": "i", "ł": "l", "ø": "o", "đ": "d", "æ": "ae", "œ": "oe"})


def upgrade() -> None:
    """Apply the revision."""
    settings = op.create_table(
        "instance_settings",
        sa.Column("id", Text, nullable=False),
        sa.Column("value", sa.JSON(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_instance_settings")),
    )
    value = {"rule": "true", "fields": ["name"]}
    op.bulk_insert(settings, [{"id": "directory", "value": value, "version": 1}])
    op.create_table(
        "user_words",
        sa.Column("account_id", Id, nullable=False),
        sa.Column("word", Text, nullable=False),
        sa.Column("field", Text, nullable=False),
        sa.Column("user_id", Id, nullable=False),
        sa.PrimaryKeyConstraint(
            "account_id", "word", "field", "user_id", name=op.f("pk_user_words")
        ),
    )
    op.create_index("ix_user_words_user", "user_words", ["account_id", "user_id"])
    _fill(op.get_bind())
    row_security.cover(op.get_bind(), "user_words")


def downgrade() -> None:
    """Revert the revision."""
    op.drop_table("user_words")
    op.drop_table("instance_settings")


def _fill(connection: sa.Connection) -> None:
    """Find the users that there are by their names and addresses."""
    users = sa.table("users", *map(sa.column, ("account_id", "id", "name", "email")))
    index = sa.table("user_words", *map(sa.column, ("account_id", "word", "field", "user_id")))
    last = ("", "")
    while True:
        key = sa.tuple_(users.c.account_id, users.c.id)
        query = sa.select(users).where(key > last).order_by(users.c.account_id, users.c.id)
        rows = connection.execute(query.limit(PAGE)).all()
        if not rows:
            return
        words = [
            {"account_id": row.account_id, "user_id": row.id, "field": field, "word": word}
            for row in rows
            for field in ("name", "email")
            for word in dict.fromkeys(_words(getattr(row, field) or ""))
        ]
        if words:
            connection.execute(sa.insert(index), words)
        last = (rows[-1].account_id, rows[-1].id)


def _words(text: str) -> Iterator[str]:
    folded = unicodedata.normalize("NFKD", text[:1000].casefold()).translate(SIMPLE).casefold()
    bare = "".join(c for c in folded if unicodedata.category(c) != "Mn")
    composed = unicodedata.normalize("NFC", bare)
    spaced = "".join(c if unicodedata.category(c)[0] in "LNM" else " " for c in composed)
    yield from (word[:64] for word in spaced.split()[:50])
