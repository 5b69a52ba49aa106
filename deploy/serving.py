"""What both servers, gunicorn and granian, do alike."""

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

THREADS = 4
# A request comes in within these, or holds no thread any more; nginx.conf has the same.
READ_SECONDS, REQUEST_SECONDS = 10, 30
WRITE_SECONDS = 30  # for 64 KiB of an answer
DRAIN_SECONDS = 0.5  # for the rest of a body that was refused before it was read
GRACEFUL_SECONDS = 23  # with what it takes to begin and to end, below 25 seconds
MOST_PROCESSES = 1000
M_ARENA_MAX, ARENAS = -8, 2
COUNTS, BEGUN_SECONDS = "atrium-counts-", 60


def too_slow() -> tuple[str, str]:
    """The status and message for a client whose request did not come in."""
    message = (
        f"The request took too long to come in: at most {READ_SECONDS} s without a byte,"
        f" and {REQUEST_SECONDS} s in all."
    )
    return "408 Request Timeout", message


def refusal(status: str, message: str) -> tuple[list[tuple[str, str]], bytes]:
    """The headers and body that answer what does not get as far as the application."""
    from app.http.error_handlers import HTTP_ERRORS

    code = int(status.partition(" ")[0])
    error = HTTP_ERRORS.get(code, "internal_error" if code == 500 else "http_error")
    told = json.dumps({"error": error, "message": message}).encode()
    headers = [
        ("Connection", "close"),
        ("Content-Type", "application/json"),
        ("Content-Length", str(len(told))),
        ("X-Correlation-ID", str(uuid.uuid4())),
    ]
    return headers, told


def host() -> str:
    """Where to listen: but for ATRIUM_LISTEN only production is reached from other machines."""
    production = os.environ.get("SERVICE_ENV") == "production"
    given = os.environ.get("ATRIUM_LISTEN", "").removeprefix("[").removesuffix("]")
    return given or ("0.0.0.0" if production else "127.0.0.1")  # noqa: S104


def port() -> int:
    """The port to listen on."""
    return _number("PORT", 8000, 65_535)


def processes() -> int:
    """How many processes serve."""
    return _number("WEB_CONCURRENCY", 2, MOST_PROCESSES)


def _number(name: str, default: int, highest: int) -> int:
    text = os.environ.get(name) or str(default)
    if not re.fullmatch("[0-9]{1,20}", text) or not 1 <= int(text) <= highest:
        sys.exit(f"The settings are not usable:\n{name} must be a whole number from 1 to {highest}")
    return int(text)


def in_memory() -> Path | None:
    """A folder that waits for no disk, where there is one."""
    shared = Path("/dev/shm")  # noqa: S108
    return shared if shared.is_dir() else None


@cache  # settings that are loaded anew leave it where it is
def count_together() -> str:
    """Have all processes count what they answer in files of one folder, which goes with them."""
    beside = in_memory() or Path(tempfile.gettempdir())
    for other in beside.glob(f"{COUNTS}*"):
        with suppress(OSError):
            _remove_left(other)
    folder = tempfile.mkdtemp(prefix=COUNTS, dir=beside)
    # Held by this process and its copies, as long as one of them lives. Where nothing can be held,
    # nothing is taken for left behind either.
    with suppress(OSError):
        fcntl.flock(os.open(folder, os.O_RDONLY), fcntl.LOCK_SH)
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder
    atexit.register(_remove, folder, os.getpid())
    return folder


def _remove_left(folder: Path) -> None:
    """Remove the counts of a server that was killed. Raises OSError where somebody holds them."""
    if folder.lstat().st_mtime > time.time() - BEGUN_SECONDS:
        return  # its server may be about to hold it
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder)
    finally:
        os.close(held)


def _remove(folder: str, made_by: int) -> None:
    if os.getpid() == made_by:  # and no copy of it, such as a worker
        shutil.rmtree(folder, ignore_errors=True)


def share_freed_memory() -> None:
    """Have threads use what others gave back: each would keep the 19 MiB of a password's hash."""
    with suppress(OSError, AttributeError):  # only the C library of GNU has it
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, ARENAS)


class Lines(logging.Formatter):
    """A server's own log in lines of JSON, as the application's; of an error its kind and place.

    Its text may quote what was sent, and so may all but the first line of a message.
    """

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        told: dict[str, object] = {
            "event": record.getMessage().partition("\n")[0],
            "pid": record.process,
        }
        if record.exc_info and record.exc_info[0]:
            frames = traceback.extract_tb(record.exc_info[2])
            told["type"] = record.exc_info[0].__name__
            told["where"] = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
        moment = datetime.fromtimestamp(record.created, UTC)
        told["level"] = record.levelname.lower()
        told["timestamp"] = f"{moment:%Y-%m-%dT%H:%M:%S.%fZ}"
        return json.dumps(told, separators=(",", ":"))
