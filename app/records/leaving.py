"""Takes deleted users out of the records that refer to them, by `on_delete`.

Up to 1,000 records change within the deletion. More are changed by a job, in transactions of their
own, each change with its audit entry and events; the row of the user goes last.
"""

from __future__ import annotations

from app import db, events, jobs
from app.accounts import users
from app.auth import principal as principals
from app.auth.principal import Principal
from app.db import versioned_cache
from app.errors import Conflict, problem, truncated
from app.records.write import cascade
from app.types import JSONMapping

AT_ONCE = 1000
PIECE = 200
JOB = "records.clear_user"
REFERRED = "Records refer to this user, in {}."


@events.subscribe(events.UserLeaving)
def _let_go(event: events.UserLeaving) -> None:
    number, restricting = cascade.places_of_user(event.account_id, event.user_id, AT_ONCE + 1)
    if restricting:
        details = [problem(one, "in_use", REFERRED.format(one)) for one in restricting]
        message = REFERRED.format(", ".join(restricting[:5]))
        raise Conflict(message, **truncated("details", details))
    if number > AT_ONCE:
        work = {"user_id": event.user_id, "by": event.by}
        jobs.enqueue(JOB, work, account_id=event.account_id, on_behalf=True)
        event.unfinished.append(JOB)
    elif number:
        by = _actor(event.account_id, event.by)
        cascade.clear_user(event.account_id, event.user_id, by=by)


@jobs.job(JOB, is_long=True)
def clear(payload: JSONMapping) -> None:
    """Let the records of an account go of a leaving user; can be interrupted and run again."""
    account_id, user_id = payload["account_id"], payload["user_id"]
    found = 1
    while found:
        with versioned_cache.reloading(), db.transaction():
            by = _actor(account_id, payload["by"])
            found = cascade.clear_user(account_id, user_id, by=by, most=PIECE)
    users.finish_deletion(account_id, user_id)


def _actor(account_id: str, user_id: str | None) -> Principal:
    """The person who deletes the user; nobody in particular for a directory."""
    account = principals.find_active_account(account_id)
    person = principals.for_user_in_account(account_id, user_id)
    return person or Principal(account=account, home=account)
