"""rewrite cron expressions

cronsim writes the last Friday as `5L` instead of `L5`, and knows no `?`, which means `*`. Nothing
replaces `15W`: such a schedule stays, and its next instance is cancelled with the reason.

Revision ID: 0029
Revises: 0028
Create Date: 2026-11-24 16:40:00.000000
"""

import re
from collections.abc import Callable

import sqlalchemy as sa
from alembic import op

from migrations.support.types import Id, Text

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None

KEY = (sa.column("account_id", Id), sa.column("id", Id))
workflows = sa.table("workflows", *KEY, sa.column("trigger", sa.JSON))
schedules = sa.table(
    "workflow_schedules",
    sa.column("account_id", Id),
    sa.column("workflow_id", Id),
    sa.column("cron", Text),
)


def upgrade() -> None:
    """Apply the revision."""
    _rewrite(lambda text: re.sub(r"(?i)\bL([0-7])\b", r"\1L", text).replace("?", "*"))


def downgrade() -> None:
    """Take the revision back."""
    _rewrite(lambda text: re.sub(r"(?i)\b([0-7])L\b", r"L\1", text))


def _rewrite(rewritten: Callable[[str], str]) -> None:
    connection = op.get_bind()
    for account_id, id, trigger in connection.execute(sa.select(workflows)).all():
        cron = trigger.get("cron")
        if isinstance(cron, str) and rewritten(cron) != cron:
            mine = (workflows.c.account_id == account_id, workflows.c.id == id)
            new = {**trigger, "cron": rewritten(cron)}
            connection.execute(sa.update(workflows).where(*mine).values(trigger=new))
    for account_id, id, cron in connection.execute(sa.select(schedules)).all():
        if rewritten(cron) != cron:
            mine = (schedules.c.account_id == account_id, schedules.c.workflow_id == id)
            connection.execute(sa.update(schedules).where(*mine).values(cron=rewritten(cron)))
