"""Maintenance: disables failing webhooks, and removes old, orphaned and excess deliveries."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import sqlalchemy as sa
import structlog

from app import clock, config, db, jobs
from app.accounts import users
from app.accounts.models import Account, User
from app.accounts.product import mails
from app.db.functions import database_now
from app.ids import first_id
from app.types import JSONMapping, JSONObject
from app.webhooks import queue, versions
from app.webhooks.delivery import Result
from app.webhooks.models import ATTEMPTS, DELIVERIES, DeliveryState, Webhook, WebhookVersion

log = structlog.get_logger()

DISABLE_AFTER_SECONDS = 5 * 86400
GONE = 410  # by which a receiver ends its subscription (Standard Webhooks)
BATCH_SIZE, MAX_BATCH_BYTES = 500, 16 * 2**20  # deliveries, and bytes of their payloads
RETENTION_DAYS = 30
IS_COMPLETED = DELIVERIES.c.status.in_((DeliveryState.DELIVERED, DeliveryState.FAILED))


def disable_failing(account_id: str, results: Sequence[Result]) -> None:
    """Disable webhooks that have only failed for five days or whose receiver is gone.

    Notifies the account's admins.
    """
    retried = [result for result in results if not result.final and not result.held]
    failed = {result.work.webhook_id for result in retried if not result.delivered}
    gone = {result.work.webhook_id for result in retried if result.status_code == GONE}
    is_gone = Webhook.id.in_(sorted(gone))
    overdue = Webhook.failing_since <= database_now(-DISABLE_AFTER_SECONDS)
    concerned = (Webhook.id.in_(sorted(failed)), Webhook.enabled, sa.or_(overdue, is_gone))
    failing = (Webhook.account_id == account_id, *concerned)
    if not failed or not db.connection().execute(sa.select(Webhook.id).where(*failing)).all():
        return
    with db.transaction() as session:
        versions.outdate(account_id)
        now, reason = clock.now(), sa.case((is_gone, "gone"), else_="failing")
        values = {"enabled": False, "disabled_at": now, "updated_at": now}
        statement = sa.update(Webhook).where(*failing).values(disabled_reason=reason, **values)
        for webhook_id in session.scalars(statement.returning(Webhook.id)).all():
            queue.lay_by(account_id, webhook_id)
            for user_id in users.verified_admins(account_id):
                job_payload = {"webhook_id": webhook_id, "user_id": user_id}
                jobs.enqueue("webhooks.tell_disabled", job_payload, account_id=account_id)


@jobs.job("webhooks.tell_disabled", mails=True)
def _notify_disabled(payload: JSONMapping) -> None:
    account_id = payload["account_id"]
    webhook = db.db.session.get(Webhook, (account_id, payload["webhook_id"]))
    user = db.db.session.get(User, (account_id, payload["user_id"]))
    account = db.db.session.get(Account, account_id)
    if webhook and user and account and user.is_active and not webhook.enabled:
        details: JSONObject = {
            "account": account.name,
            "collection": webhook.collection or "*",
            "gone": webhook.disabled_reason == "gone",
            "webhook_id": webhook.id,
            "host": urlsplit(webhook.url).hostname,  # only this: the path may be a secret
        }
        mails.send("webhook_disabled", user.email, account_id, user=user, **details)


@jobs.job("webhooks.remove")
def _remove(payload: JSONMapping) -> None:
    conditions = [DELIVERIES.c.account_id == payload["account_id"]]
    if payload["webhook_id"]:
        conditions.append(DELIVERIES.c.webhook_id == payload["webhook_id"])
    _remove_deliveries(*conditions)


@jobs.periodic(3600, "webhooks.purge")
def purge(payload: JSONMapping) -> None:
    """Delete deliveries that completed long ago."""
    cutoff = clock.now() - timedelta(days=RETENTION_DAYS)
    accounts = sa.select(Account.id).order_by(Account.id)
    for account_id in db.db.session.scalars(accounts).all():
        remove_completed(account_id, cutoff)
        # Old attempts whose delivery no longer exists.
        table = ATTEMPTS.c
        is_stray = ~sa.exists().where(
            DELIVERIES.c.account_id == account_id, DELIVERIES.c.id == table.delivery_id
        )
        stray = (table.account_id == account_id, table.id < first_id(cutoff), is_stray)
        with db.transaction() as session:
            session.execute(sa.delete(ATTEMPTS).where(*stray))


def completed_before(account_id: str, cutoff: datetime) -> list[sa.ColumnElement[bool]]:
    """Conditions for the account's completed deliveries that were created before a moment."""
    mine = DELIVERIES.c.account_id == account_id
    return [mine, DELIVERIES.c.due_at.is_(None), DELIVERIES.c.id < first_id(cutoff)]


def remove_completed(account_id: str, cutoff: datetime) -> None:
    """Delete these deliveries with their attempts, in short transactions."""
    _remove_deliveries(*completed_before(account_id, cutoff))


@jobs.periodic(300, "webhooks.bound")
def bound(payload: JSONMapping) -> None:
    """Limit the size of each account's deliveries to `SERVICE_WEBHOOK_LOG_BYTES`.

    The oldest completed deliveries are deleted first, pending ones never. If those exceed the limit
    by themselves, new deliveries of the account have ids only until they take less.
    """
    max_bytes = config.current().webhook_log_bytes
    columns = (WebhookVersion.account_id, WebhookVersion.payloads_cut)
    versions_query = sa.select(*columns).order_by(WebhookVersion.account_id)
    for account_id, is_cut in db.db.session.execute(versions_query).all():
        size = DELIVERIES.c.size
        sizes = (sa.case((IS_COMPLETED, size), else_=0), sa.case((IS_COMPLETED, 0), else_=size))
        sums = (sa.func.coalesce(sa.func.sum(part), 0) for part in sizes)
        same_account = DELIVERIES.c.account_id == account_id
        row = db.connection().execute(sa.select(*sums).where(same_account)).one()
        completed, waiting = int(row[0]), int(row[1])
        _remove_oldest(account_id, min(completed, completed + waiting - max_bytes))
        if (waiting > max_bytes) != is_cut:
            with db.transaction():
                versions.cut_payloads(account_id, waiting > max_bytes)
            details = {"account": account_id, "waiting": waiting, "allowed": max_bytes}
            log.warning(
                "payloads cut" if waiting > max_bytes else "payloads whole again", **details
            )


def _remove_oldest(account_id: str, excess: int) -> None:
    table = DELIVERIES.c
    completed = sa.select(table.id, table.size).where(table.account_id == account_id, IS_COMPLETED)
    oldest = completed.order_by(table.id).limit(BATCH_SIZE)
    while excess > 0 and (rows := db.connection().execute(oldest).all()):
        ids, freed = [], 0
        for row in rows:
            if freed < min(excess, MAX_BATCH_BYTES):
                ids.append(row.id)
                freed += row.size
        _remove_these(account_id, ids)
        excess -= freed


def _remove_deliveries(*conditions: Any) -> None:
    query = sa.select(DELIVERIES.c.account_id, DELIVERIES.c.id).where(*conditions).limit(BATCH_SIZE)
    while rows := db.connection().execute(query).all():
        _remove_these(rows[0].account_id, [row.id for row in rows])


def _remove_these(account_id: str, ids: Sequence[str]) -> None:
    with db.transaction() as session:
        for table, column in ((ATTEMPTS, ATTEMPTS.c.delivery_id), (DELIVERIES, DELIVERIES.c.id)):
            conditions = (table.c.account_id == account_id, column.in_(ids))
            session.execute(sa.delete(table).where(*conditions))
