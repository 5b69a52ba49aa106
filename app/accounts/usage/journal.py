"""Counts of requests in a file that outlives its process: a kill loses none (docs/adr/0047).

Each process maps a file of its own into memory and adds to it; no request waits for a disk or the
database. What the file says is absolute, and is stored under the file's id: storing it again
changes nothing. The file is locked as long as its process lives, so that others can tell which
ones are left over.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from app.ids import new_id

SUFFIX = ".requests"
# The day as an ordinal, 0 in unused entries; the account; the count.
ENTRY = struct.Struct("=q16sQ")
COUNT_SIZE = 8
COUNT_OFFSET = ENTRY.size - COUNT_SIZE
MAX_ENTRIES = 2048


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
