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

BATCH_SIZE = 500


@jobs.job("workflows.remove")
def _remove(payload: JSONMapping) -> None:
    account_id, workflow_id = payload["account_id"], payload["workflow_id"]
    conditions = [INSTANCES.c.account_id == account_id]
    versions = [VERSIONS.c.account_id == account_id]
    if workflow_id:
        conditions.append(INSTANCES.c.workflow_id == workflow_id)
        versions.append(VERSIONS.c.workflow_id == workflow_id)
    with db.transaction() as session:
        session.execute(sa.delete(VERSIONS).where(*versions))
    _remove_instances(*conditions)


@jobs.periodic(3600, "workflows.purge")
def purge(payload: JSONMapping) -> None:
    """Delete instances that finished long ago, and versions that none uses."""
    days = config.current().workflow_retention_days
    cutoff = clock.now() - timedelta(days=days)
    # Instances created later cannot have completed before: the primary key excludes them.
    old = sa.and_(INSTANCES.c.id < first_id(cutoff), INSTANCES.c.completed_at < cutoff)
    for account_id in db.db.session.scalars(sa.select(Account.id).order_by(Account.id)).all():
        same_account = INSTANCES.c.account_id == account_id
        _remove_instances(same_account, INSTANCES.c.due_at.is_(None), old)
        _remove_versions(account_id)


def _remove_versions(account_id: str) -> None:
    table: Any = Workflow.__table__
    used_by_instance = (
        INSTANCES.c.account_id == account_id,
        INSTANCES.c.workflow_id == VERSIONS.c.workflow_id,
        INSTANCES.c.version == VERSIONS.c.version,
    )
    is_current = (
        table.c.account_id == account_id,
        table.c.id == VERSIONS.c.workflow_id,
        table.c.version == VERSIONS.c.version,
    )
    unused = (~sa.exists().where(*used_by_instance), ~sa.exists().where(*is_current))
    with db.transaction() as session:
        statement = sa.delete(VERSIONS).where(VERSIONS.c.account_id == account_id, *unused)
        session.execute(statement)


def _remove_instances(*conditions: Any) -> None:
    query = sa.select(INSTANCES.c.account_id, INSTANCES.c.id).where(*conditions).limit(BATCH_SIZE)
    while True:
        with db.transaction() as session:
            # Locked, so that no concurrent resume interferes.
            rows = session.execute(query.with_for_update()).all()
            if not rows:
                return
            account_id, ids = rows[0].account_id, [row.id for row in rows]
            for table, column in (
                (LOGS, LOGS.c.instance_id),
                (SUBSCRIPTIONS, SUBSCRIPTIONS.c.instance_id),
                (INSTANCES, INSTANCES.c.id),
            ):
                rows_of_table = (table.c.account_id == account_id, column.in_(ids))
                session.execute(sa.delete(table).where(*rows_of_table))
