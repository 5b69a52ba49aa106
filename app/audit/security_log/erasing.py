"""Erasing a user from the security log while its chain still verifies (docs/audit.md).

What is personal becomes null with its salt; the digests stay. Each erasure is an event of the chain
itself, in the form that a verifier of the audit log expects. The first events go in the transaction
of the erasure, the rest in short ones of a job.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import orjson
import sqlalchemy as sa
from cryptography.fernet import InvalidToken

from app import crypto, db, events, jobs
from app.audit.security_log import entries, sealing
from app.audit.security_log.entries import ACTOR, EVENTS
from app.audit.security_log.models import EventKind
from app.audit.security_log.recording import PENDING
from app.context import tenancy
from app.types import JSONMapping

BATCH_SIZE = 500
WITH_ADDRESS = (EventKind.SIGN_IN_FAILED, EventKind.SIGN_IN_LOCKED)
"""The kinds of events whose details have an address."""


@dataclass(frozen=True)
class Erasure:
    """Which events of an account lose which columns, with their salt."""

    account_id: str
    salt: str
    columns: tuple[str, ...]
    where: tuple[sa.ColumnElement[bool], ...]


@events.subscribe(events.UserErased)
def _erase_user(event: events.UserErased) -> None:
    if not event.is_home:
        return  # the accounts acted in are found in the logs themselves
    room = BATCH_SIZE
    for erasure in _all_erasures(event.account_id, event.user_id, event.emails):
        room -= _erase_batch(erasure, room)
        if room <= 0:
            break
    emails = crypto.encrypt(orjson.dumps(sorted(event.emails)).decode())
    payload = {"user_id": event.user_id, "emails": emails}
    jobs.enqueue("security.erase_user", payload, account_id=event.account_id)


@jobs.job("security.erase_user")
def erase_user(payload: JSONMapping) -> None:
    """Erase a user from the logs of all accounts; it goes on where it was interrupted."""
    home, user_id = payload["account_id"], payload["user_id"]
    try:
        emails: list[str] = orjson.loads(crypto.decrypt(payload["emails"]))
    except InvalidToken:
        emails = []
    for erasure in _all_erasures(home, user_id, emails):
        _erase_all(erasure)
    if not emails:
        return
    # Somebody may have typed the addresses at the sign-in of other accounts. Only failures of
    # nobody known: a user of another account with this address is another one.
    of_strangers = (EVENTS.c.target_id == "", *_names(emails))
    typed = sa.select(EVENTS.c.account_id).where(*of_strangers)
    with tenancy.across_accounts():
        account_ids = sorted(db.connection().scalars(typed.distinct()))
    for account_id in account_ids:
        _erase_all(Erasure(account_id, "salt", ("details",), of_strangers))


def _erase_all(erasure: Erasure) -> None:
    while _erase_batch(erasure, BATCH_SIZE) == BATCH_SIZE:
        pass


def _all_erasures(home: str, user_id: str, emails: Collection[str]) -> Iterator[Erasure]:
    """The erasures in the user's account, and in those in which the user acted."""
    account_ids = {home}
    with tenancy.across_accounts():
        for table in (EVENTS, PENDING):
            acted = sa.select(table.c.account_id).where(table.c.user_id == user_id)
            account_ids.update(db.connection().scalars(acted.distinct()))
    details, about = ("details",), (EVENTS.c.target_type == "users", EVENTS.c.target_id == user_id)
    for account_id in sorted(account_ids):
        sealing.seal(account_id)
        # Each is served by an index.
        yield Erasure(account_id, "actor_salt", ACTOR, (EVENTS.c.user_id == user_id,))
        yield Erasure(account_id, "salt", details, about)
        if emails:
            yield Erasure(account_id, "salt", details, _names(emails))


def _names(emails: Collection[str]) -> tuple[sa.ColumnElement[bool], ...]:
    quoted = (orjson.dumps(email.lower()).decode() for email in sorted(emails))
    named = [EVENTS.c.details.contains(text, autoescape=True) for text in quoted]
    return EVENTS.c.kind.in_(WITH_ADDRESS), sa.or_(*named)


def _erase_batch(erasure: Erasure, limit: int) -> int:
    """Erase up to so many events in one transaction; returns the number."""
    account_id, salt = erasure.account_id, EVENTS.c[erasure.salt]
    place = (EVENTS.c.account_id == account_id, salt.is_not(None), *erasure.where)
    query = sa.select(EVENTS.c.number).where(*place).order_by(EVENTS.c.number).limit(limit)
    with tenancy.in_account(account_id), db.transaction() as session:
        head = sealing.lock_head(account_id)
        numbers = session.scalars(query).all()
        if numbers:
            own = (EVENTS.c.account_id == account_id, EVENTS.c.number.in_(numbers))
            emptied = dict.fromkeys((*erasure.columns, erasure.salt))
            session.execute(sa.update(EVENTS).where(*own).values(emptied))
            names = (entries.ERASED_KIND, entries.ERASED_TARGET)
            details = {"column": erasure.salt}
            erased = [entries.own_event(account_id, *names, number, details) for number in numbers]
            sealing.append(account_id, erased, *head)
    return len(numbers)
