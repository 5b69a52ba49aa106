"""The disk that SQLite's file is on: what comes last on a disk that is nearly full.

Below `LOW_BYTES` requests write no more, but signing in and deleting go on: who could free space
otherwise? Where other programs fill the rest of the disk, a file beside the database is given up
for these, piece by piece. It covers what the database grows by as its log is copied into it, too:
on a disk without room for that the log is not begun anew, and nothing can be written any more.
PostgreSQL's disk is its server's affair.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from app.errors import Unavailable

MIB = 2**20
LOW_BYTES, PIECE_BYTES = 16 * MIB, 8 * MIB
# The longest log (PAGES_IN_LOG in app/db/sqlite_driver.py), and a piece for concurrent writes.
RESERVE_BYTES = 48 * MIB
WARN_BYTES = 512 * MIB
READING = ("GET", "HEAD", "OPTIONS")
ESSENTIAL = re.compile(
    r"/api/v1/auth/(login|refresh|logout|exchange|reauthenticate|mfa/verify)"
    r"|/(api/v1/auth/)?(oauth|saml)/.+"
    r"|/console/(sign-in|sign-out|reauthenticate|sso/start/.+|sso/finish|.+/(delete|remove))"
)
FULL = (
    f"The disk is nearly full (less than {LOW_BYTES // MIB} MiB are free), so only signing in"
    " and deleting still work. Tell whoever runs this service."
)

_reserved: set[str] = set()


def free(file: str) -> int | None:
    """How many bytes the disk of a file still takes; None where nobody knows."""
    try:
        return shutil.disk_usage(Path(file).parent).free
    except OSError:
        return None


def may_write(file: str) -> bool:
    """Whether files can be written beside a file at all."""
    return os.access(Path(file).parent, os.W_OK)


def prepare(file: str, connection: Any, is_essential: Callable[[], bool]) -> None:
    """Before a request writes: raises Unavailable on a disk that is nearly full."""
    left = free(file)
    if left is None:
        return
    if left >= LOW_BYTES + 2 * RESERVE_BYTES:
        _reserve(file)
    elif left < LOW_BYTES:
        if is_essential():
            if left < PIECE_BYTES:
                _give_up_piece(file)
        elif left + _unused(connection) < LOW_BYTES:
            raise Unavailable(FULL)


def is_essential(method: str, path: str) -> bool:
    """Whether a request is what must still work."""
    writes = method not in (*READING, "DELETE")
    return not writes or ESSENTIAL.fullmatch(path.rstrip("/")) is not None


def _unused(connection: Any) -> int:
    """What of the database's own file holds nothing any more."""
    pages: int = connection.execute("PRAGMA freelist_count").fetchone()[0]
    size: int = connection.execute("PRAGMA page_size").fetchone()[0]
    return pages * size


def _path(file: str) -> str:
    return f"{file}-reserve"


def _reserve(file: str) -> None:
    if file in _reserved:
        return
    _reserved.add(file)
    with suppress(OSError):  # the disk does not take it
        made = os.open(_path(file), os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(made, 0, RESERVE_BYTES)
        finally:
            os.close(made)


def _give_up_piece(file: str) -> None:
    _reserved.discard(file)
    path = Path(_path(file))
    with suppress(OSError):  # there is none, or another process was faster
        left = path.stat().st_size - PIECE_BYTES
        if left > 0:
            os.truncate(path, left)
        else:
            path.unlink()
