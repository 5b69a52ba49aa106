"""The version of an account's webhooks, which caches depend on."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from app import db
from app.accounts.models import Account
from app.db import citus, engine
from app.webhooks.models import WebhookVersion


def cut_payloads(account_id: str, cut: bool) -> None:
    """Set whether new deliveries of an account have ids only."""
    outdate(account_id)
    same_account = WebhookVersion.account_id == account_id
    db.connection().execute(sa.update(WebhookVersion).where(same_account).values(payloads_cut=cut))


def outdate(account_id: str) -> None:
    """Invalidate the cached webhooks of an account, and serialize their changes.

    Until the open transaction ends, no other transaction changes webhooks of the account.
    """
    # Lock in the same order as closing an account does: new rows refer to it. Not on Citus, where a
    # shared lock of a shared table is one on all its rows, and two at once deadlock.
    if not citus.is_sharded(db.connection()):
        account_lock = sa.select(Account.id).where(Account.id == account_id)
        db.connection().execute(account_lock.with_for_update(read=True, key_share=True))
    dialect: Any = sqlite if engine.current_engine().dialect.name == "sqlite" else postgresql
    insert = dialect.insert(WebhookVersion).values(account_id=account_id, version=1)
    next_version: object = WebhookVersion.version + 1
    key = [WebhookVersion.account_id]
    statement: sa.Insert = insert.on_conflict_do_update(
        index_elements=key, set_={"version": next_version}
    )
    db.connection().execute(statement)
