"""Counts the requests of a process, and stores the counts of all processes of the machine.

Each process maps a file of its own into memory and adds to it, so that a kill loses none
(docs/adr/0047); no request waits for a disk or the database. What the file says is absolute, and is
stored under the file's id: storing it again changes nothing. The file is locked as long as its
process lives, so that others can tell which ones are left over.

Refusals for a quota become events here, too: the transaction that is refused rolls back.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

import sqlalchemy as sa
import structlog
from flask import Flask
from sqlalchemy.exc import SQLAlchemyError

from app import clock, config, db, events
from app.accounts.models import Account
from app.accounts.usage import levels
from app.accounts.usage.models import COUNTS, NOTICES, REQUESTS
from app.context import tenancy
from app.errors import Unavailable
from app.ids import new_id

log = structlog.get_logger()
KEY = "atrium.usage"
FLUSH_SECONDS = 1
RECHECK_SECONDS = 10  # of the day, as the clock may be set
RETRY_SECONDS = 10  # after a file could not be created
STALE_SECONDS = 10  # without a flusher, a quota costs a statement this often
OLDEST_DAYS = 30  # journals of earlier days are dropped: their days may be folded
ROWS = 500
REFUSED = 101  # percent: something was refused, in the hour that is the notice's period
SUFFIX = ".requests"
# The day as an ordinal, 0 in unused entries; the account; the count.
ENTRY = struct.Struct("=q16sQ")
COUNT_SIZE = 8
COUNT_OFFSET = ENTRY.size - COUNT_SIZE
MAX_ENTRIES = 2048


class _Known(NamedTuple):
    """The requests of an account that others have counted on a day."""

    day: int
    others: int
    read_at: float


class RequestCounter:
    """The requests of this process, by account and day."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._lock = folder, threading.Lock()
        self._journal: Journal | None = None
        self._pid, self._retry_at, self._valid_until = 0, 0.0, 0.0
        self._stored: dict[tuple[str, int, str], int] = {}
        self._known: dict[str, _Known] = {}
        self._refusals = set[tuple[str, str]]()
        """The accounts and meters of refusals since the last flush."""
        self._told, self._hour = set[tuple[str, str]](), ""
        """Those whose event is stored in an hour."""

    def add(self, account_id: str) -> None:
        with self._lock:
            current = self._journal
            if current is not None and time.monotonic() < self._valid_until:
                place = current.places.get(account_id)
                if place is not None and self._pid == os.getpid():
                    current.numbers[place] += 1
                    return
            self._add(account_id)

    def _add(self, account_id: str) -> None:
        if self._retry_at and time.monotonic() < self._retry_at:
            return
        day = clock.now().toordinal()
        try:
            current = self._current(day)
            place = current.places.get(account_id)
            if place is None:
                current.insert(account_id)
            else:
                current.numbers[place] += 1
        except Full:
            self._open(day).insert(account_id)
        except OSError as error:  # the response matters more
            self._retry_at = time.monotonic() + RETRY_SECONDS
            log.warning("requests are not metered", reason=error.strerror)

    def _current(self, day: int) -> Journal:
        # A fork must not add to its parent's file, and a new day begins a new one.
        current = self._journal
        if current is None or self._pid != os.getpid() or current.day != day:
            current = self._open(day)
        self._valid_until = time.monotonic() + min(RECHECK_SECONDS, clock.seconds_until_midnight())
        return current

    def _open(self, day: int) -> Journal:
        if self._journal is not None and self._pid == os.getpid():
            self._journal.close()
        self._journal, self._pid = None, os.getpid()
        self._journal = Journal(self._folder, day)
        return self._journal

    def count_of_today(self, account_id: str) -> int:
        """Return the requests of an account today; those of other processes as last read."""
        day = clock.now().toordinal()
        known = self._known.get(account_id)
        if known is None or known.day != day or known.read_at < time.monotonic() - STALE_SECONDS:
            self._read_others(day, [account_id])
            known = self._known[account_id]
        with self._lock:
            own = self._journal if self._journal and self._journal.day == day else None
            return known.others + (own.count(account_id) if own else 0)

    def collect(self) -> None:
        """Store what this process has counted, and what killed ones have left on this machine."""
        self._collect(everything=False)

    def collect_all(self) -> None:
        """Store what all processes of this machine have counted."""
        self._collect(everything=True)

    def _collect(self, *, everything: bool) -> None:
        oldest = clock.now().toordinal() - OLDEST_DAYS
        with self._lock:
            own_id = self._journal.id if self._journal else ""
        for id, entries, is_left_over in read_all(self._folder):
            if not (everything or is_left_over or id == own_id):
                continue
            recent = [entry for entry in entries if entry.day >= oldest]
            changed = [
                entry for entry in recent if self._stored.get(_key(id, entry)) != entry.requests
            ]
            if changed:
                _store(id, changed)
                self._stored |= {_key(id, entry): entry.requests for entry in changed}
            if is_left_over:
                remove(self._folder, id)
                self._stored = {key: n for key, n in self._stored.items() if key[0] != id}

    def note_refusal(self, account_id: str, meter: str) -> None:
        """Note that something was refused for a quota; `flush` stores it."""
        self._refusals.add((account_id, meter))

    def store_refusals(self) -> None:
        """Store an event for each account and meter of refusals, once an hour at most."""
        hour = clock.iso(clock.now())[: len("2026-11-30T12")]
        if hour != self._hour:
            self._told, self._hour = set(), hour
        for account_id, meter in self._refusals - self._told:
            key = {"account_id": account_id, "meter": meter, "period": hour}
            row = levels.insert(NOTICES).values(**key, percent=REFUSED)
            once = row.on_conflict_do_nothing().returning(NOTICES.c.percent)
            with tenancy.in_account(account_id), db.transaction() as session:
                if session.execute(once).all():
                    about = {"account_id": account_id, "quota": meter}
                    events.publish(events.Happened(account_id, "quota.exceeded", about))
            self._told.add((account_id, meter))
        self._refusals -= self._told

    def close(self) -> None:
        """Leave the journal to whoever collects it."""
        with self._lock:
            if self._journal is not None and self._pid == os.getpid():
                self._journal.close()
            self._journal, self._pid = None, 0

    def refresh(self) -> None:
        """Read again what others have counted today for the accounts that quotas are checked of."""
        day = clock.now().toordinal()
        account_ids = [id for id, known in self._known.items() if known.day == day]
        if account_ids:
            self._read_others(day, account_ids)

    def _read_others(self, day: int, account_ids: Sequence[str]) -> None:
        with self._lock:
            own = self._journal.id if self._journal and self._pid == os.getpid() else ""
        of_day = (COUNTS.c.meter == REQUESTS, COUNTS.c.day == _iso(day))
        counts = dict.fromkeys(account_ids, 0)
        with tenancy.across_accounts():
            for first in range(0, len(account_ids), ROWS):
                some = COUNTS.c.account_id.in_(account_ids[first : first + ROWS])
                query = sa.select(COUNTS.c.account_id, sa.func.sum(COUNTS.c.amount))
                query = query.where(some, *of_day, COUNTS.c.slot != own)
                for account_id, count in db.connection().execute(
                    query.group_by(COUNTS.c.account_id)
                ):
                    counts[account_id] = int(count)
        now = time.monotonic()
        self._known |= {id: _Known(day, count, now) for id, count in counts.items()}


def _key(journal_id: str, entry: Entry) -> tuple[str, int, str]:
    return (journal_id, entry.day, entry.account_id)


def _iso(day: int) -> str:
    return date.fromordinal(day).isoformat()


def _store(journal_id: str, entries: Sequence[Entry]) -> None:
    ids, open_ids = sorted({entry.account_id for entry in entries}), set[str]()
    with tenancy.across_accounts():
        # The counts of closed accounts are removed with them.
        for first in range(0, len(ids), ROWS):
            some = Account.id.in_(ids[first : first + ROWS])
            query = sa.select(Account.id).where(some, Account.closed_at.is_(None))
            open_ids.update(db.connection().scalars(query))
    # In one order, so that two processes that store the same journal do not deadlock.
    rows = [
        {
            "account_id": entry.account_id,
            "meter": REQUESTS,
            "day": _iso(entry.day),
            "slot": journal_id,
            "amount": entry.requests,
        }
        for entry in sorted(entries, key=lambda entry: (entry.account_id, entry.day))
        if entry.account_id in open_ids
    ]
    with tenancy.across_accounts():
        for first in range(0, len(rows), ROWS):
            new = levels.insert(COUNTS).values(rows[first : first + ROWS])
            # Another process may have read the journal later, and stored it earlier.
            stored = new.on_conflict_do_update(
                index_elements=[*COUNTS.primary_key],
                set_={"amount": new.excluded.amount},
                where=COUNTS.c.amount < new.excluded.amount,
            )
            with db.transaction() as session:
                session.execute(stored)


def of(app: Flask) -> RequestCounter:
    """Return the application's counter."""
    counter: RequestCounter | None = app.extensions.get(KEY)
    if counter is None:
        folder = app.extensions["atrium.config"].instance_dir / "usage"
        counter = app.extensions.setdefault(KEY, RequestCounter(folder))
    return counter


def add(account_id: str) -> None:
    """Count a request of an account."""
    counter: RequestCounter | None = config.context().app.extensions.get(KEY)
    (counter or current()).add(account_id)


def current() -> RequestCounter:
    """Return the running application's counter."""
    return of(config.running())


def start_flushing(app: object) -> None:
    """Store this machine's counts every second, in a thread of this process.

    Does nothing for an application that is not this one.
    """
    if not isinstance(app, Flask) or "atrium.config" not in app.extensions:
        return
    threading.Thread(target=_flush, args=[app], name="usage", daemon=True).start()


def _flush(app: Flask) -> None:
    counter = of(app)
    while True:
        time.sleep(FLUSH_SECONDS)
        with app.app_context():
            flush(counter)


def flush(counter: RequestCounter) -> None:
    """Store the counts of this process and of killed ones, and read those of others."""
    try:
        _try(counter.collect)
        _try(counter.refresh)
        _try(counter.store_refusals)
    finally:
        db.db.session.remove()


def collect_all() -> None:
    """Store the counts of all processes of this machine."""
    _try(current().collect_all)


def _try(step: Callable[[], None]) -> None:
    # Without the database, or room on its disk, the journals stay for the next time.
    try:
        step()
    except (SQLAlchemyError, OSError, Unavailable) as error:
        log.warning("usage is not stored", reason=type(error).__name__)


class Entry(NamedTuple):
    """The requests of an account on a day."""

    day: int
    account_id: str
    requests: int


class Full(Exception):
    """A journal without room for another account."""


class Journal:
    """The counts of one process on one day; not thread-safe."""

    def __init__(self, folder: Path, day: int) -> None:
        """Create the file of a day in the folder. Raises OSError."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.id = new_id()
        self._path = folder / f"{self.id}{SUFFIX}"
        draft = self._path.with_suffix(".new")
        self._descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        # Locked before it gets its name: nobody takes it for left over.
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        os.ftruncate(self._descriptor, MAX_ENTRIES * ENTRY.size)
        self._map = mmap.mmap(self._descriptor, MAX_ENTRIES * ENTRY.size)
        self.numbers = memoryview(self._map).cast("Q")
        draft.rename(self._path)
        self.day = day
        self.places = dict[str, int]()
        """The index in `numbers` of each account's count."""

    def insert(self, account_id: str) -> None:
        """Count the first request of an account. Raises Full."""
        number = len(self.places)
        if number == MAX_ENTRIES:
            raise Full
        offset = number * ENTRY.size
        # The day last: an entry counts once it is whole.
        ENTRY.pack_into(self._map, offset, 0, UUID(account_id).bytes, 1)
        struct.pack_into("=q", self._map, offset, self.day)
        self.places[account_id] = (offset + COUNT_OFFSET) // COUNT_SIZE

    def count(self, account_id: str) -> int:
        """Return how many requests of an account this journal has counted."""
        place = self.places.get(account_id)
        return 0 if place is None else self.numbers[place]

    def close(self) -> None:
        """Leave the file to whoever collects it."""
        self.numbers.release()
        self._map.close()
        os.close(self._descriptor)


def read_all(folder: Path) -> Iterator[tuple[str, list[Entry], bool]]:
    """Yield the id and entries of each journal in a folder, and whether it is left over.

    A left-over journal stays locked until the caller continues; it may then be `remove`d.
    """
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            continue  # collected by another process
        try:
            is_left_over = _try_lock(descriptor)
            yield path.stem, _parse(os.pread(descriptor, MAX_ENTRIES * ENTRY.size, 0)), is_left_over
        finally:
            os.close(descriptor)


def remove(folder: Path, id: str) -> None:
    """Remove a left-over journal whose entries are stored."""
    (folder / f"{id}{SUFFIX}").unlink(missing_ok=True)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _parse(content: bytes) -> list[Entry]:
    entries = []
    whole = len(content) - len(content) % ENTRY.size
    for day, account, count in ENTRY.iter_unpack(content[:whole]):
        if day == 0:
            break
        entries.append(Entry(day, str(UUID(bytes=account)), count))
    return entries
