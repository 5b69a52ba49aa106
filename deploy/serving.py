"""What gunicorn's settings are made of."""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import os
import re
import shutil
import sys
import tempfile
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

THREADS = 128  # most of them wait: app/auth/guard/fair_turns.py says how many requests run
READ_SECONDS, WRITE_SECONDS = 10, 30  # without a byte; the same as in nginx.conf
GRACEFUL_SECONDS = 23  # below 25 seconds together with start and exit
MAX_PROCESSES = 1000
M_ARENA_MAX, ARENAS = -8, 1
# Files that change with each request, or at each second, must not wait for a disk.
MEMORY = Path("/dev/shm")  # noqa: S108
FOLDER = MEMORY if MEMORY.is_dir() else Path(tempfile.gettempdir())
METRICS_PREFIX, STARTUP_SECONDS = "atrium-counts-", 60


def host() -> str:
    """The address to listen on: ATRIUM_LISTEN, or loopback except in production."""
    production = os.environ.get("SERVICE_ENV") == "production"
    address = os.environ.get("ATRIUM_LISTEN", "").removeprefix("[").removesuffix("]")
    return address or ("0.0.0.0" if production else "127.0.0.1")  # noqa: S104


def port() -> int:
    """The port to listen on: PORT, or 8000."""
    return _number("PORT", 8000, 65_535)


def processes() -> int:
    """The number of worker processes: WEB_CONCURRENCY, or 2."""
    return _number("WEB_CONCURRENCY", 2, MAX_PROCESSES)


def _number(name: str, default: int, highest: int) -> int:
    text = os.environ.get(name) or str(default)
    if not re.fullmatch("[0-9]{1,20}", text) or not 1 <= int(text) <= highest:
        sys.exit(f"Invalid settings:\n{name} must be a whole number from 1 to {highest}")
    return int(text)


@cache  # gunicorn loads its settings again on reload
def share_metrics() -> str:
    """Share metrics between the processes in one folder, removed on exit.

    The lock lasts as long as this process or a fork of it lives: the folder of a killed server has
    none, once its server had time to take it.
    """
    for stale in FOLDER.glob(f"{METRICS_PREFIX}*"):
        with suppress(OSError):
            if stale.lstat().st_mtime < time.time() - STARTUP_SECONDS:
                _lock(stale, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(stale)
    folder = tempfile.mkdtemp(prefix=METRICS_PREFIX, dir=FOLDER)
    with suppress(OSError):
        _lock(folder, fcntl.LOCK_SH)
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder
    owner = os.getpid()  # and not a fork of it, such as a worker
    atexit.register(lambda: os.getpid() == owner and shutil.rmtree(folder, ignore_errors=True))
    return folder


def _lock(folder: str | Path, kind: int) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, kind)  # as long as the descriptor is open
    except OSError:
        os.close(descriptor)
        raise


def share_freed_memory() -> None:
    """Limit malloc to one arena: each would retain up to 38 MiB of freed password hashes."""
    with suppress(OSError, AttributeError):  # glibc only
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, ARENAS)
