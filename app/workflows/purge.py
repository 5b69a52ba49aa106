"""Removes old instances, and the remains of deleted workflows."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa

from app import clock, config, db, jobs
from app.accounts.models import Account
from app.ids import first_id
from app.types import JSONMapping
from app.workflows.models import INSTANCES, LOGS, SUBSCRIPTIONS, VERSIONS, Workflow

BATCH_SIZE = 500
MAX_LOGS = 5000  # deleted in one transaction


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
    cutoff = clock.now() - timedelta(days=config.current().workflow_retention_days)
    for account_id in db.db.session.scalars(sa.select(Account.id).order_by(Account.id)).all():
        remove_finished(account_id, cutoff)
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


def finished_before(account_id: str, cutoff: datetime) -> list[sa.ColumnElement[bool]]:
    """Conditions for the account's instances that finished before a moment."""
    table = INSTANCES.c
    finished = (table.account_id == account_id, table.due_at.is_(None))
    # Instances created later cannot have completed before: the primary key excludes them.
    return [*finished, table.id < first_id(cutoff), table.completed_at < cutoff]


def remove_finished(account_id: str, cutoff: datetime) -> None:
    """Delete these instances with their logs, in short transactions."""
    _remove_instances(*finished_before(account_id, cutoff))


def _remove_instances(*conditions: Any) -> None:
    query = sa.select(INSTANCES.c.account_id, INSTANCES.c.id).where(*conditions).limit(BATCH_SIZE)
    while True:
        with db.transaction() as session:
            # Locked, so that no concurrent resume interferes.
            rows = session.execute(query.with_for_update()).all()
            if not rows:
                return
            account_id, ids = rows[0].account_id, [row.id for row in rows]
            of_instances = (LOGS.c.account_id == account_id, LOGS.c.instance_id.in_(ids))
            some = sa.select(LOGS.c.id).where(*of_instances).limit(MAX_LOGS).scalar_subquery()
            logs = sa.delete(LOGS).where(LOGS.c.account_id == account_id, LOGS.c.id.in_(some))
            if db.connection().execute(logs).rowcount == MAX_LOGS:  # others may write in between
                continue
            for table, column in (
                (SUBSCRIPTIONS, SUBSCRIPTIONS.c.instance_id),
                (INSTANCES, INSTANCES.c.id),
            ):
                rows_of_table = (table.c.account_id == account_id, column.in_(ids))
                session.execute(sa.delete(table).where(*rows_of_table))
