"""Keeps essential requests working on a nearly full disk (SQLite only).

Below `LOW_BYTES` ordinary requests may not write; signing in and deleting still work, so that
somebody can free space. If other programs fill the rest of the disk, a reserve file beside the
database shrinks step by step to make room. The reserve also covers the growth of the database when
its WAL is copied into it: without that room the WAL never restarts, and all writing stops.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from app.errors import Unavailable

MIB = 2**20
LOW_BYTES, STEP_BYTES = 16 * MIB, 8 * MIB
# The longest WAL (WAL_PAGES in app/db/sqlite_driver.py), and a step for concurrent writes.
RESERVE_BYTES = 48 * MIB
WARN_BYTES = 512 * MIB
READING = ("GET", "HEAD", "OPTIONS")
ESSENTIAL = re.compile(
    r"/api/v1/auth/(login|refresh|logout|exchange|reauthenticate|mfa/verify)"
    r"|/(api/v1/auth/)?(oauth|saml)/.+"
    r"|/console/(sign-in|sign-out|reauthenticate|sso/start/.+|sso/finish|.+/(delete|remove))"
)
FULL = (
    f"The disk is nearly full (less than {LOW_BYTES // MIB} MiB free). Only signing in and"
    " deleting still work. Contact the operator of this service."
)

_reserved: set[str] = set()


class Space(NamedTuple):
    free: int
    total: int


def free_bytes(file: str) -> int | None:
    """Return the free bytes on a file's disk; None if unknown."""
    found = space(file)
    return found.free if found else None


def space(file: str) -> Space | None:
    """Return the free bytes and all bytes of a file's disk; None if unknown."""
    try:
        disk = os.statvfs(_folder(file))
    except OSError:
        return None
    return Space(disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize)


@lru_cache
def _folder(file: str) -> str:
    return str(Path(file).parent)


def may_write(file: str) -> bool:
    """Whether the folder of a file is writable."""
    return os.access(Path(file).parent, os.W_OK)


def check_free_space(
    file: str, connection: sqlite3.Connection, is_essential: Callable[[], bool]
) -> None:
    """Before a request writes: raise Unavailable if the disk is nearly full."""
    left = free_bytes(file)
    if left is None:
        return
    if left >= LOW_BYTES + 2 * RESERVE_BYTES:
        _reserve(file)
    elif left < LOW_BYTES:
        if is_essential():
            if left < STEP_BYTES:
                _shrink_reserve(file)
        elif left + _unused(connection) < LOW_BYTES:
            raise Unavailable(FULL)


def is_essential(method: str, path: str) -> bool:
    """Whether a request must work on a nearly full disk."""
    writes = method not in (*READING, "DELETE")
    return not writes or ESSENTIAL.fullmatch(path.rstrip("/")) is not None


def _unused(connection: sqlite3.Connection) -> int:
    """The free bytes inside the database file."""
    pages: int = connection.execute("PRAGMA freelist_count").fetchone()[0]
    size: int = connection.execute("PRAGMA page_size").fetchone()[0]
    return pages * size


def _path(file: str) -> str:
    return f"{file}-reserve"


def _reserve(file: str) -> None:
    if file in _reserved:
        return
    _reserved.add(file)
    with suppress(OSError, AttributeError):  # no room, or not supported, as by macOS
        descriptor = os.open(_path(file), os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, RESERVE_BYTES)
        finally:
            os.close(descriptor)


def _shrink_reserve(file: str) -> None:
    _reserved.discard(file)
    path = Path(_path(file))
    with suppress(OSError):  # missing, or another process was faster
        left = path.stat().st_size - STEP_BYTES
        if left > 0:
            os.truncate(path, left)
        else:
            path.unlink()
