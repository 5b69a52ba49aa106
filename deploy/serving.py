"""Settings and helpers shared by gunicorn and granian."""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import json
import logging
import os
import re
import shutil
import sys
import tempfile
import time
import traceback
import uuid
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from deploy import fair_pool

THREADS = 4
# Timeouts for receiving a request: without a byte, and in all; the same as in nginx.conf.
READ_SECONDS, REQUEST_SECONDS = 10, 30
# A body has a second more for each of these bytes that has arrived: uploads may take longer, but
# whoever sends more slowly than that does not hold a thread.
BYTES_PER_SECOND = 2**20
WRITE_SECONDS = 30  # for 64 KiB of a response
DRAIN_SECONDS = 0.5  # for the rest of a body that was refused unread
GRACEFUL_SECONDS = 23  # below 25 seconds together with start and exit
MAX_PROCESSES = 1000
M_ARENA_MAX, ARENAS = -8, 1
METRICS_PREFIX, STARTUP_SECONDS = "atrium-counts-", 60


def timeout_response() -> tuple[str, str]:
    """Return status and message for a request that was not received in time."""
    message = (
        f"The request was not received in time: send it within {REQUEST_SECONDS} s,"
        f" with pauses of at most {READ_SECONDS} s."
    )
    return "408 Request Timeout", message


def error_response(
    status: str, message: str, **others: object
) -> tuple[list[tuple[str, str]], bytes]:
    """Return headers and body of an error response for requests that the application never sees."""
    from app.web.error_handlers import HTTP_ERRORS

    code = int(status.partition(" ")[0])
    error = HTTP_ERRORS.get(code, "internal_error" if code == 500 else "http_error")
    body = json.dumps({"error": error, "message": message, **others}).encode()
    headers = [
        ("Connection", "close"),
        ("Content-Type", "application/json"),
        ("Content-Length", str(len(body))),
        ("X-Correlation-ID", str(uuid.uuid4())),
    ]
    return headers, body


def busy_response() -> tuple[str, list[tuple[str, str]], bytes]:
    """Return status, headers and body for a caller with too many requests waiting."""
    status = "429 Too Many Requests"
    quota = {"quota": "concurrent_requests", "limit": fair_pool.MAX_WAITING}
    headers, body = error_response(
        status,
        "Too many requests of this account wait to be served, while others send some, too.",
        error="quota_exceeded",
        **quota,
    )
    return status, [*headers, ("Retry-After", "1")], body


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


def memory_folder() -> Path | None:
    """A folder in memory, or None."""
    shared = Path("/dev/shm")  # noqa: S108
    return shared if shared.is_dir() else None


@cache  # gunicorn loads its settings again on reload
def share_metrics() -> str:
    """Share metrics between the processes in one folder, removed on exit."""
    parent = memory_folder() or Path(tempfile.gettempdir())
    for stale in parent.glob(f"{METRICS_PREFIX}*"):
        with suppress(OSError):
            _remove_stale(stale)
    folder = tempfile.mkdtemp(prefix=METRICS_PREFIX, dir=parent)
    # The lock lasts as long as this process or a fork of it lives. Without locks, no folder is
    # considered stale.
    with suppress(OSError):
        fcntl.flock(os.open(folder, os.O_RDONLY), fcntl.LOCK_SH)
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder
    atexit.register(_remove, folder, os.getpid())
    return folder


def _remove_stale(folder: Path) -> None:
    """Remove the folder of a killed server. Raises OSError if a server has it locked."""
    if folder.lstat().st_mtime > time.time() - STARTUP_SECONDS:
        return  # its server may not have locked it yet
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder)
    finally:
        os.close(descriptor)


def _remove(folder: str, owner_pid: int) -> None:
    if os.getpid() == owner_pid:  # not in forks, such as workers
        shutil.rmtree(folder, ignore_errors=True)


def share_freed_memory() -> None:
    """Limit malloc to one arena: each would retain up to 38 MiB of freed password hashes."""
    with suppress(OSError, AttributeError):  # glibc only
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, ARENAS)


def log_formatter() -> logging.Formatter:
    """The formatter of the server's own log, in the format of the application's."""
    chosen = os.environ.get("SERVICE_LOG_FORMAT") or "auto"
    is_development = os.environ.get("SERVICE_ENV", "development") == "development"
    if chosen == "text" or (chosen == "auto" and is_development):
        return TextFormatter()
    return JsonFormatter()


class TextFormatter(logging.Formatter):
    """Formats the server's own log for people; of exceptions only the type."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record as one line of text."""
        moment = datetime.fromtimestamp(record.created, UTC).astimezone()
        line = record.getMessage().partition("\n")[0].encode("unicode_escape").decode()
        kind = f" {record.exc_info[0].__name__}" if record.exc_info and record.exc_info[0] else ""
        return f"{moment:%H:%M:%S} {record.levelname.lower():7} {line}{kind}"


class JsonFormatter(logging.Formatter):
    """Formats the server's own log as JSON lines; of exceptions only type and location.

    Their text may quote the request, as may all but the first line of a message.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Format a record as one JSON line."""
        entry: dict[str, object] = {
            "event": record.getMessage().partition("\n")[0],
            "pid": record.process,
        }
        if record.exc_info and record.exc_info[0]:
            frames = traceback.extract_tb(record.exc_info[2])
            entry["type"] = record.exc_info[0].__name__
            entry["where"] = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
        moment = datetime.fromtimestamp(record.created, UTC)
        entry["level"] = record.levelname.lower()
        entry["timestamp"] = f"{moment:%Y-%m-%dT%H:%M:%S.%fZ}"
        return json.dumps(entry, separators=(",", ":"))
