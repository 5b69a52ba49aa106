"""Maintenance: disables failing webhooks, and removes old, orphaned and excess deliveries."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import sqlalchemy as sa
import structlog

from app import clock, config, db, jobs
from app.accounts.models import ADMIN, Account, Role, User
from app.db.functions import database_now
from app.ids import first_id
from app.outbound import mail
from app.types import JSONMapping
from app.webhooks import queue, versions
from app.webhooks.models import (
    ATTEMPTS,
    DELIVERED,
    DELIVERIES,
    FAILED,
    Webhook,
    WebhookVersion,
)
from app.webhooks.queue import Result

log = structlog.get_logger()

DISABLE_AFTER_SECONDS = 5 * 86400
PIECE, LARGEST_PIECE = 500, 16 * 2**20  # deliveries, and bytes of their payloads
KEPT_DAYS = 30
IS_OVER = DELIVERIES.c.status.in_((DELIVERED, FAILED))


def disable_failing(account_id: str, results: Sequence[Result]) -> None:
    """Disable webhooks that have only failed for five days, and notify the account's admins."""
    tried = [one for one in results if not one.final and not one.held]
    failed = {one.work.webhook_id for one in tried if not one.delivered}
    late = Webhook.failing_since <= database_now(-DISABLE_AFTER_SECONDS)
    mine = (Webhook.account_id == account_id, Webhook.id.in_(sorted(failed)), Webhook.enabled)
    if not failed or not db.connection().execute(sa.select(Webhook.id).where(*mine, late)).all():
        return
    with db.transaction() as session:
        versions.outdate(account_id)
        now = clock.now()
        changed = {"enabled": False, "disabled_at": now, "updated_at": now}
        change = sa.update(Webhook).where(*mine, late).values(changed)
        for webhook_id in session.scalars(change.returning(Webhook.id)).all():
            queue.lay_by(account_id, webhook_id)
            for user_id in session.scalars(_admins(account_id)):
                told = {"webhook_id": webhook_id, "user_id": user_id}
                jobs.enqueue("webhooks.tell_disabled", told, account_id=account_id)


def _admins(account_id: str) -> sa.Select[str]:
    chosen = sa.select(User.id).join(Role, Role.id == User.role_id)
    able = (User.is_active, User.email_verified, Role.name == ADMIN)
    return chosen.where(User.account_id == account_id, *able)


@jobs.job("webhooks.tell_disabled", mails=True)
def _tell_disabled(payload: JSONMapping) -> None:
    account_id = payload["account_id"]
    webhook = db.db.session.get(Webhook, (account_id, payload["webhook_id"]))
    user = db.db.session.get(User, (account_id, payload["user_id"]))
    account = db.db.session.get(Account, account_id)
    if webhook and user and account and user.is_active and not webhook.enabled:
        about = {"collection": webhook.collection, "webhook_id": webhook.id}
        # The address without its path, which may be a secret.
        host = urlsplit(webhook.url).hostname
        mail.send(user.email, "webhook_disabled", host=host, account=account.name, **about)


@jobs.job("webhooks.remove")
def _remove(payload: JSONMapping) -> None:
    mine = [DELIVERIES.c.account_id == payload["account_id"]]
    if payload["webhook_id"]:
        mine.append(DELIVERIES.c.webhook_id == payload["webhook_id"])
    _remove_deliveries(*mine)


@jobs.periodic(3600, "webhooks.purge")
def purge(payload: JSONMapping) -> None:
    """Delete deliveries that completed long ago."""
    old = DELIVERIES.c.id < first_id(clock.now() - timedelta(days=KEPT_DAYS))
    accounts = sa.select(Account.id).order_by(Account.id)
    for account_id in db.db.session.scalars(accounts).all():
        over = (DELIVERIES.c.account_id == account_id, DELIVERIES.c.due_at.is_(None))
        _remove_deliveries(*over, old)
        _remove_stray_attempts(account_id)


def _remove_stray_attempts(account_id: str) -> None:
    """Delete old attempts whose delivery no longer exists."""
    table, first = ATTEMPTS.c, first_id(clock.now() - timedelta(days=KEPT_DAYS))
    of_one = (DELIVERIES.c.account_id == account_id, DELIVERIES.c.id == table.delivery_id)
    stray = (table.account_id == account_id, table.id < first, ~sa.exists().where(*of_one))
    with db.transaction() as session:
        session.execute(sa.delete(ATTEMPTS).where(*stray))


@jobs.periodic(300, "webhooks.bound")
def bound(payload: JSONMapping) -> None:
    """Limit the size of each account's deliveries to `SERVICE_WEBHOOK_LOG_BYTES`.

    The oldest completed deliveries are deleted first, pending ones never. If those exceed the limit
    by themselves, new deliveries of the account have ids only until they take less.
    """
    most = config.current().webhook_log_bytes
    columns = (WebhookVersion.account_id, WebhookVersion.payloads_cut)
    known = sa.select(*columns).order_by(WebhookVersion.account_id)
    for account_id, is_cut in db.db.session.execute(known).all():
        over, waiting = _stored(account_id)
        _remove_oldest(account_id, min(over, over + waiting - most))
        if (waiting > most) != is_cut:
            with db.transaction():
                versions.cut_payloads(account_id, waiting > most)
            about = {"account": account_id, "waiting": waiting, "allowed": most}
            log.warning("payloads cut" if waiting > most else "payloads whole again", **about)


def _stored(account_id: str) -> tuple[int, int]:
    size = DELIVERIES.c.size
    parts = (sa.case((IS_OVER, size), else_=0), sa.case((IS_OVER, 0), else_=size))
    sums = (sa.func.coalesce(sa.func.sum(part), 0) for part in parts)
    mine = DELIVERIES.c.account_id == account_id
    row = db.connection().execute(sa.select(*sums).where(mine)).one()
    return int(row[0]), int(row[1])


def _remove_oldest(account_id: str, excess: int) -> None:
    table = DELIVERIES.c
    over = sa.select(table.id, table.size).where(table.account_id == account_id, IS_OVER)
    oldest = over.order_by(table.id).limit(PIECE)
    while excess > 0 and (rows := db.connection().execute(oldest).all()):
        ids, freed = [], 0
        for row in rows:
            if freed < min(excess, LARGEST_PIECE):
                ids.append(row.id)
                freed += row.size
        _remove_these(account_id, ids)
        excess -= freed


def _remove_deliveries(*which: Any) -> None:
    chosen = sa.select(DELIVERIES.c.account_id, DELIVERIES.c.id).where(*which).limit(PIECE)
    while rows := db.connection().execute(chosen).all():
        _remove_these(rows[0].account_id, [row.id for row in rows])


def _remove_these(account_id: str, ids: Sequence[str]) -> None:
    with db.transaction() as session:
        for table, column in ((ATTEMPTS, ATTEMPTS.c.delivery_id), (DELIVERIES, DELIVERIES.c.id)):
            mine = (table.c.account_id == account_id, column.in_(ids))
            session.execute(sa.delete(table).where(*mine))
