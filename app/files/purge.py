"""Removes the bytes of files that nobody needs any more, and what crashes left over."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import timedelta
from itertools import islice
from typing import TypeVar

import sqlalchemy as sa

from app import clock, config, db, events, jobs
from app.accounts.models import User
from app.collections.fields.file import files_in
from app.collections.trash import TRASH
from app.context import tenancy
from app.files import content, storage, uploads
from app.files.models import FILES
from app.files.service import REMOVE
from app.files.uploads import TAKEN_WITHIN
from app.types import JSONMapping

PIECE = 200
# A blob without a row is that old before it counts as left over: its upload may be under way.
UNDER_WAY = timedelta(days=1)  # what an import of a large bundle may take
Item = TypeVar("Item")
BLOB_TABLES: list[sa.FromClause] = [FILES]
"""The tables, or selections of them, that name blobs, by account and id."""


@events.subscribe(events.RecordErased)
def _erase_of_record(event: events.RecordErased) -> None:
    # Its deletion has let go of them; a record that was created under its id since keeps its own.
    _mark(event.account_id, FILES.c.record_id == event.record_id, FILES.c.released_at.is_not(None))


@events.subscribe(events.UserErased)
def _erase_of_user(event: events.UserErased) -> None:
    own = FILES.c.uploaded_by == event.user_id
    _mark(event.account_id, own, FILES.c.record_id.is_(None))
    mine = FILES.c.account_id == event.account_id
    db.connection().execute(sa.update(FILES).where(mine, own).values(uploaded_by=None))


@events.subscribe(events.UserLostAccess)
def _discard_of_user(event: events.UserLostAccess) -> None:
    # A new password ends sessions, too, but its user comes back for the uploads.
    who = (User.account_id == event.account_id, User.id == event.user_id, User.is_active)
    if event.is_deleted or db.db.session.scalar(sa.select(User.id).where(*who)) is None:
        uploads.discard_of_user(event.account_id, event.user_id)


def _mark(account_id: str, *which: sa.ColumnElement[bool]) -> None:
    statement = sa.update(FILES).where(
        FILES.c.account_id == account_id, FILES.c.removed_at.is_(None), *which
    )
    if db.connection().execute(statement.values(removed_at=clock.now())).rowcount:
        jobs.enqueue(REMOVE, {}, account_id=account_id)


@events.subscribe(events.CollectionRemoved)
def _release_of_collection(event: events.CollectionRemoved) -> None:
    of_collection = (FILES.c.collection_id == event.definition.id, FILES.c.released_at.is_(None))
    released = sa.update(FILES).where(*of_collection).values(released_at=clock.now())
    with tenancy.across_accounts():
        db.connection().execute(released)


@events.subscribe(events.FieldsRemoved)
def _release_of_fields(event: events.FieldsRemoved) -> None:
    with tenancy.across_accounts():
        for name in event.names & event.definition.files.keys():
            for piece in _pieces(_named_by(event.definition.table, name)):
                release = sa.update(FILES).where(FILES.c.id.in_(piece))
                db.connection().execute(release.values(released_at=clock.now()))


def _named_by(table: sa.Table, name: str) -> Iterator[str]:
    """The ids of all files that a column names."""
    rows = sa.select(table.c.id, table.c[name]).where(table.c[name].is_not(None))
    last = ""
    while True:
        piece = rows.where(table.c.id > last).order_by(table.c.id).limit(PIECE)
        page = db.connection().execute(piece).all()
        if not page:
            return
        yield from (file["id"] for row in page for file in files_in(row[1]))
        last = page[-1][0]


@events.subscribe(events.AccountClosed)
def _remove_of_account(event: events.AccountClosed) -> None:
    # Once more when all is over that was under way as the account was closed.
    for delay in (0, jobs.IN_FLIGHT_SECONDS):
        payload = {"prefix": f"{event.account_id}/"}
        jobs.enqueue("files.remove_account", payload, account_id=event.account_id, after=delay)


@jobs.job("files.remove_account")
def remove_account(payload: JSONMapping) -> None:
    """Delete all blobs of a closed account."""
    place = storage.current()
    for blob in place.blobs(payload["prefix"]):
        place.delete(blob.key)


@jobs.job(REMOVE)
def remove(payload: JSONMapping) -> None:
    """Delete the files that are marked: first the bytes, then the row."""
    columns = (FILES.c.account_id, FILES.c.id, FILES.c.mime_type)
    marked = sa.select(*columns).where(FILES.c.removed_at.is_not(None))
    place = storage.current()
    with tenancy.across_accounts():
        for rows in _pieces(db.connection().execute(marked).all()):
            keys = [(account_id, file_id) for account_id, file_id, _ in rows]
            for account_id, file_id, mime_type in rows:
                if mime_type in content.RASTER:
                    for blob in list(place.blobs(storage.thumbnails_of(account_id, file_id))):
                        place.delete(blob.key)
                place.delete(storage.key_of(account_id, file_id))
            with db.transaction() as session:
                is_any = sa.tuple_(FILES.c.account_id, FILES.c.id).in_(keys)
                session.execute(sa.delete(FILES).where(is_any, FILES.c.removed_at.is_not(None)))


@jobs.periodic(600, "files.expire")
def expire(payload: JSONMapping) -> None:
    """Remove uploads that no record took, and files that their record let go of long ago."""
    now = clock.now()
    history = timedelta(days=config.current().file_history_days)
    is_untaken = sa.and_(FILES.c.record_id.is_(None), FILES.c.created_at < now - TAKEN_WITHIN)
    # Its record may come back.
    is_in_trash = sa.exists().where(
        TRASH.c.account_id == FILES.c.account_id,
        TRASH.c.collection_id == FILES.c.collection_id,
        TRASH.c.id == FILES.c.record_id,
    )
    is_past = sa.and_(FILES.c.released_at < now - history, ~is_in_trash)
    with tenancy.across_accounts():
        with db.transaction() as session:
            expired = sa.update(FILES).where(FILES.c.removed_at.is_(None))
            session.execute(expired.where(sa.or_(is_untaken, is_past)).values(removed_at=now))
        remove({})


@jobs.periodic(24 * 3600, "files.sweep")
def sweep(payload: JSONMapping) -> None:
    """Delete blobs that no row knows: uploads that a crash interrupted."""
    place, until = storage.current(), clock.now() - UNDER_WAY
    storage.remove_incoming(until)
    old = (blob.key for blob in place.blobs() if blob.modified_at < until)
    with tenancy.across_accounts():
        for keys in _pieces(old):
            wanted = {key: owner for key in keys if (owner := storage.owner_of(key))}
            known = sa.union_all(
                *(
                    sa.select(table.c.account_id, table.c.id).where(
                        sa.tuple_(table.c.account_id, table.c.id).in_(wanted.values())
                    )
                    for table in BLOB_TABLES
                )
            )
            present = set(map(tuple, db.connection().execute(known)))
            for key in keys:
                if wanted.get(key) not in present:
                    place.delete(key)


def _pieces(items: Iterable[Item]) -> Iterator[list[Item]]:
    iterator = iter(items)
    while piece := list(islice(iterator, PIECE)):
        yield piece
