"""Stored documents of issuers: discovery documents and key sets, as a process last read them.

Sign-ins do not wait for the issuer. They use the stored document; once it is ten minutes old, a job
renews it. Only a document that is missing, or an hour old, is read within the request, by one
request at a time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from app import clock, db, events, jobs
from app.accounts.models import SYSTEM_ACCOUNT_ID
from app.context import tenancy
from app.outbound import web_waits
from app.sso.connections import Connection
from app.sso.models import IssuerDocument
from app.sso.oauth import exchange
from app.types import JSONObject

FRESH, KEPT = timedelta(minutes=10), timedelta(hours=1)
AFTER_FAILURE, BETWEEN_REFRESHES = timedelta(seconds=30), timedelta(minutes=1)
RENEW = "sso.renew_documents"
ALL_THREADS = 1000
TABLE: Any = IssuerDocument.__table__
Parse = Callable[[JSONObject], JSONObject]
"""Returns what of a document is stored. Raises Unreachable if it cannot be used."""

# One request of a process reads a document, also of the operator's own issuers.
_reads = web_waits.Places(ALL_THREADS)


def load(connection: Connection, address: str, parse: Parse) -> JSONObject:
    """Return the document at an address. Raises Unreachable."""
    owner, now = _owner(connection), clock.now()
    saved = _find(owner, address)
    if saved is None or saved.content is None or _is_older(saved.read_at, now - KEPT):
        _check_failure(saved)
        return read(connection, address, parse, newer_than=now - KEPT)
    if _is_older(saved.read_at, now - FRESH) and _is_older(saved.renewal_asked_at, now - FRESH):
        content = saved.content
        with db.transaction():
            if _claim(owner, address, "renewal_asked_at", FRESH):
                payload = {"provider": connection.provider.name}
                jobs.enqueue(RENEW, payload, account_id=owner)
        return content
    return saved.content


def refresh(connection: Connection, address: str, parse: Parse) -> JSONObject | None:
    """Read a document anew, as it lacks a key; None if that was done within the last minute.

    Raises Unreachable.
    """
    if not _claim(_owner(connection), address, "refreshed_at", BETWEEN_REFRESHES):
        return None
    return read(connection, address, parse)


def read(
    connection: Connection, address: str, parse: Parse, *, newer_than: datetime | None = None
) -> JSONObject:
    """Read a document now, and store it. Raises Unreachable.

    With `newer_than`, one that another request has read meanwhile will do, and a failure of the
    last half minute counts as one now.
    """
    owner = _owner(connection)
    db.db.session.rollback()  # hold no connection during requests
    try:
        with exchange.place(connection), _reads.hold(str(_key(owner, address))):
            if newer_than is not None:
                saved = _find(owner, address)
                if saved and saved.content is not None and not _is_older(saved.read_at, newer_than):
                    return saved.content
                _check_failure(saved)
                db.db.session.rollback()
            try:
                content = parse(exchange.published(address))
            except exchange.Unreachable as error:
                # What was read before stays: it may still do.
                _store(owner, address, error=error.detail, failed_at=clock.now())
                raise
            save(owner, address, content)
            return content
    except web_waits.Busy:
        raise exchange.Unreachable("Another sign-in reads what the issuer publishes.") from None


def _check_failure(saved: IssuerDocument | None) -> None:
    if saved and not _is_older(saved.failed_at, clock.now() - AFTER_FAILURE):
        raise exchange.Unreachable(saved.error or "")


def save(owner: str, address: str, content: JSONObject) -> None:
    """Store a document that was just read, for the account that owns the settings."""
    _store(owner, address, content=content, read_at=clock.now(), error=None, failed_at=None)


def _store(owner: str, address: str, **values: object) -> None:
    insert = sqlite.insert if db.has_one_writer() else postgresql.insert
    values |= {"stored_at": clock.now()}
    new = insert(TABLE).values(**_key(owner, address), **values)
    stored = new.on_conflict_do_update(
        index_elements=[*TABLE.primary_key], set_={name: new.excluded[name] for name in values}
    )
    with tenancy.in_account(owner), db.transaction() as session:
        session.execute(stored)


def _claim(owner: str, address: str, column: str, period: timedelta) -> bool:
    """Set a time unless it is younger than a period; whether it was set."""
    now, moment = clock.now(), TABLE.c[column]
    due = sa.or_(moment.is_(None), moment <= now - period)
    claimed = sa.update(TABLE).where(*_own(owner, address), due).values({column: now})
    with tenancy.in_account(owner), db.transaction() as session:
        return session.execute(claimed.returning(moment)).first() is not None


def _find(owner: str, address: str) -> IssuerDocument | None:
    query = sa.select(IssuerDocument).where(*_own(owner, address))
    with tenancy.in_account(owner):
        return db.db.session.scalar(query.execution_options(populate_existing=True))


def _own(owner: str, address: str) -> list[sa.ColumnElement[bool]]:
    return [TABLE.c[name] == value for name, value in _key(owner, address).items()]


def _key(owner: str, address: str) -> dict[str, str]:
    digest = hashlib.sha256(address.encode()).hexdigest()
    return {"account_id": owner, "address_hash": digest}


def _owner(connection: Connection) -> str:
    return connection.account.id if connection.is_own else SYSTEM_ACCOUNT_ID


def _is_older(moment: datetime | None, than: datetime) -> bool:
    return moment is None or moment <= than


@events.subscribe(events.AccountClosed)
def _remove(event: events.AccountClosed) -> None:
    db.connection().execute(sa.delete(TABLE).where(TABLE.c.account_id == event.account_id))
