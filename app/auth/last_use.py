"""The last use of a key or token, to the minute."""

from __future__ import annotations

from datetime import timedelta

import sqlalchemy as sa

from app import clock, db
from app.auth.models import ApiKey, ScimToken
from app.context import tenancy
from app.db import versioned_cache

INTERVAL = timedelta(minutes=1)


def record(model: type[ApiKey] | type[ScimToken], account_id: str, id: str) -> None:
    """Record that a key or token is used now."""
    # One write per minute over all processes, as the row's own timestamp decides.
    cache, now = versioned_cache.cache(f"{model.__tablename__}_noted"), clock.now()
    recorded = cache.get(id, lambda: now - INTERVAL)
    if recorded is None or now - recorded < INTERVAL:
        return
    cache.put(id, now)
    is_due = sa.or_(model.last_used_at.is_(None), model.last_used_at <= now - INTERVAL)
    conditions = (model.account_id == account_id, model.id == id, is_due)
    with tenancy.in_account(account_id), db.transaction() as session:
        session.execute(sa.update(model).where(*conditions).values(last_used_at=now))
