"""Erasing a user from the security log while its chain still verifies (docs/audit.md).

What is personal becomes null with its salt; the digests stay. Each erasure is an event of the chain
itself, in the form that a verifier of the audit log expects.
"""

from __future__ import annotations

import orjson
import sqlalchemy as sa

from app import clock, db, events
from app.context import actor, tenancy
from app.security import entries, sealing
from app.security.entries import ACTOR, EVENTS
from app.security.recording import PENDING
from app.types import JSONObject

BATCH_SIZE = 500


@events.subscribe(events.UserErased)
def _erase_user(event: events.UserErased) -> None:
    for account_id in sorted({event.account_id, *_accounts_acted_in(event.user_id)}):
        with tenancy.in_account(account_id):
            sealing.seal(account_id)
            _erase(account_id, "actor_salt", ACTOR, EVENTS.c.user_id == event.user_id)
            about = [EVENTS.c.target_id == event.user_id, *map(_mentions, event.emails)]
            is_own = EVENTS.c.target_type != entries.ERASED[1]
            _erase(account_id, "salt", ("details",), sa.or_(*about), is_own)


def _accounts_acted_in(user_id: str) -> set[str]:
    found = set[str]()
    with tenancy.across_accounts():
        for table in (EVENTS, PENDING):
            acted = sa.select(table.c.account_id).where(table.c.user_id == user_id)
            found.update(db.connection().scalars(acted.distinct()))
    return found


def _mentions(email: str) -> sa.ColumnElement[bool]:
    quoted = orjson.dumps(email.lower()).decode()
    return EVENTS.c.details.contains(quoted, autoescape=True)


def _erase(
    account_id: str, salt: str, columns: tuple[str, ...], *where: sa.ColumnElement[bool]
) -> None:
    place = (EVENTS.c.account_id == account_id, EVENTS.c[salt].is_not(None), *where)
    query = sa.select(EVENTS.c.number).where(*place).order_by(EVENTS.c.number).limit(BATCH_SIZE)
    emptied = dict.fromkeys((*columns, salt))
    with db.transaction() as session:
        head = sealing.lock_head(account_id)
        while numbers := session.scalars(query).all():
            own = (EVENTS.c.account_id == account_id, EVENTS.c.number.in_(numbers))
            session.execute(sa.update(EVENTS).where(*own).values(emptied))
            erasures = [_erasure(account_id, number, salt) for number in numbers]
            head = sealing.append(account_id, erasures, *head)


def _erasure(account_id: str, number: int, salt: str) -> JSONObject:
    operation, table = entries.ERASED
    return {
        "account_id": account_id,
        "kind": operation,
        "target_type": table,
        "target_id": str(number),
        "path": None,
        "user_id": actor.SYSTEM.user_id,
        "occurred_at": clock.now(),
        **dict.fromkeys((*ACTOR, "request_id")),
        "details": orjson.dumps({"column": salt}).decode(),
    }
