"""Recording events: in the open transaction, else in one of their own, and without a lock."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from itertools import groupby
from operator import attrgetter

import sqlalchemy as sa

from app import clock, db
from app.audit.chain import digest
from app.audit.security_log.models import PendingEvent
from app.context import actor, tenancy
from app.context.actor import Actor
from app.db import Base
from app.db.prepared import PreparedStatement
from app.ids import new_id
from app.types import JSONMapping

LONGEST_TEXT = 500
PENDING = Base.metadata.tables[PendingEvent.__tablename__]
_NEW_ROWS = sa.insert(PENDING).values(
    {column: sa.bindparam(f"_{column.name}") for column in PENDING.c}
)
_NEW = PreparedStatement(_NEW_ROWS, keyed=True)


@dataclass(frozen=True)
class Event:
    """Something to record: what happened, to what, and who did it."""

    account_id: str
    kind: str
    target_type: str = ""
    target_id: str = ""
    details: JSONMapping = field(default_factory=dict)
    path: str | None = None
    by: Actor = field(default_factory=actor.current)
    occurred_at: datetime = field(default_factory=clock.now)


def record(*recorded: Event) -> None:
    """Store events; a rollback of the open transaction discards them."""
    with db.transaction():
        db.before_commit(_insert, *recorded)


def _insert(recorded: list[Event]) -> None:
    account_of = attrgetter("account_id")
    recorded.sort(key=account_of)  # stable: in order within an account
    if tenancy.current() == tenancy.ALL_ACCOUNTS and len(recorded) > 1:
        # A superadmin's look at many accounts is one statement.
        db.connection().execute(_NEW_ROWS, list(_rows(recorded)))
        return
    for account_id, own in groupby(recorded, account_of):
        rows = list(_rows(own))
        if len(rows) == 1 and tenancy.current() in (account_id, tenancy.ALL_ACCOUNTS):
            # The statement may travel with the commit, in the scope of then.
            _NEW.run(rows[0])
        else:
            with tenancy.in_account(account_id):
                db.connection().execute(_NEW_ROWS, rows)


def _rows(recorded: Iterable[Event]) -> Iterable[dict[str, object]]:
    for event in recorded:
        by, details = event.by, dict(event.details)
        kind, id, name = by.named(event.account_id)
        if by.portal is not None:
            details["portal"] = by.portal
        yield {
            "_account_id": event.account_id,
            "_id": new_id(),
            "_kind": event.kind,
            "_target_type": event.target_type,
            "_target_id": event.target_id,
            "_path": event.path,
            "_user_id": by.user_id,
            "_occurred_at": event.occurred_at,
            "_user_email": _text(by.user_email),
            "_user_name": _text(by.user_name),
            "_ip_address": by.ip_address,
            "_user_agent": _text(by.user_agent),
            "_request_id": by.request_id,
            "_details": digest.canonical(details).decode(),
            "_digest_version": digest.VERSION,
            "_actor_kind": kind.value,
            "_actor_id": id,
            "_actor_name": _text(name),
        }


def _text(value: str | None) -> str | None:
    # PostgreSQL stores no NUL.
    return None if value is None else value.replace("\0", "\ufffd")[:LONGEST_TEXT]
