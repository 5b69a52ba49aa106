"""Removes old instances, and the remains of deleted workflows."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import sqlalchemy as sa

from app import clock, config, db, jobs
from app.accounts.models import Account
from app.ids import first_id
from app.types import JSONMapping
from app.workflows.models import INSTANCES, LOGS, SUBSCRIPTIONS, VERSIONS, Workflow

PIECE = 500


@jobs.job("workflows.remove")
def _remove(payload: JSONMapping) -> None:
    account_id, workflow_id = payload["account_id"], payload["workflow_id"]
    mine = [INSTANCES.c.account_id == account_id]
    versions = [VERSIONS.c.account_id == account_id]
    if workflow_id:
        mine.append(INSTANCES.c.workflow_id == workflow_id)
        versions.append(VERSIONS.c.workflow_id == workflow_id)
    with db.transaction() as session:
        session.execute(sa.delete(VERSIONS).where(*versions))
    _remove_instances(*mine)


@jobs.periodic(3600, "workflows.purge")
def purge(payload: JSONMapping) -> None:
    """Delete instances that finished long ago, and versions that none uses."""
    days = config.current().workflow_retention_days
    then = clock.now() - timedelta(days=days)
    # What began later is not over for so long either: a key passes over it.
    old = sa.and_(INSTANCES.c.id < first_id(then), INSTANCES.c.completed_at < then)
    for account_id in db.db.session.scalars(sa.select(Account.id).order_by(Account.id)).all():
        mine = INSTANCES.c.account_id == account_id
        _remove_instances(mine, INSTANCES.c.due_at.is_(None), old)
        _remove_versions(account_id)


def _remove_versions(account_id: str) -> None:
    table: Any = Workflow.__table__
    same = (
        INSTANCES.c.account_id == account_id,
        INSTANCES.c.workflow_id == VERSIONS.c.workflow_id,
        INSTANCES.c.version == VERSIONS.c.version,
    )
    current = (
        table.c.account_id == account_id,
        table.c.id == VERSIONS.c.workflow_id,
        table.c.version == VERSIONS.c.version,
    )
    unused = (~sa.exists().where(*same), ~sa.exists().where(*current))
    with db.transaction() as session:
        gone = sa.delete(VERSIONS).where(VERSIONS.c.account_id == account_id, *unused)
        session.execute(gone)


def _remove_instances(*which: Any) -> None:
    chosen = sa.select(INSTANCES.c.account_id, INSTANCES.c.id).where(*which).limit(PIECE)
    while True:
        with db.transaction() as session:
            # Locked: what is resumed by now is not chosen, and what is chosen is not resumed.
            rows = session.execute(chosen.with_for_update()).all()
            if not rows:
                return
            account_id, ids = rows[0].account_id, [row.id for row in rows]
            for table, column in (
                (LOGS, LOGS.c.instance_id),
                (SUBSCRIPTIONS, SUBSCRIPTIONS.c.instance_id),
                (INSTANCES, INSTANCES.c.id),
            ):
                mine = (table.c.account_id == account_id, column.in_(ids))
                session.execute(sa.delete(table).where(*mine))
