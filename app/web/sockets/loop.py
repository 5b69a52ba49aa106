"""One asyncio loop per process, in a daemon thread: it serves all streams and large downloads."""

from __future__ import annotations

import asyncio
import os
import resource
import threading
from contextlib import suppress
from contextvars import Context
from typing import Any

import structlog

from app.errors import error_location

log = structlog.get_logger()
MACOS_MAX_FILES = 10_240  # OPEN_MAX: setrlimit(2) of macOS takes no more, whatever the hard limit

_lock = threading.Lock()
_loops = dict[int, asyncio.AbstractEventLoop]()


def current() -> asyncio.AbstractEventLoop:
    """Return the loop of this process; starts it at the first connection."""
    process = os.getpid()  # threads do not survive a fork
    with _lock:
        if process not in _loops:
            _loops[process] = _start()
        return _loops[process]


def _start() -> asyncio.AbstractEventLoop:
    _raise_file_limit()
    loop = Context().run(asyncio.new_event_loop)  # which would keep the request that starts it
    loop.set_exception_handler(_log_error)
    threading.Thread(target=loop.run_forever, name="connections", daemon=True).start()
    return loop


def _raise_file_limit() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for limit in (hard, MACOS_MAX_FILES):
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
            return


def _log_error(loop: object, context: dict[str, Any]) -> None:
    # asyncio would log the values, too.
    error = context.get("exception")
    log.error("connection failed", **(error_location(error) if error else {}))
