"""How many tests of receivers run at once: slow receivers must not occupy all threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from app import config
from app.errors import TooManyRequests

MAX_CONCURRENT = 2  # of a process
WAIT_SECONDS = 5
_slots = threading.BoundedSemaphore(MAX_CONCURRENT)


@contextmanager
def limited() -> Iterator[None]:
    """Wait for a free slot. Raises TooManyRequests while too many others run."""
    if not _slots.acquire(timeout=WAIT_SECONDS):
        raise TooManyRequests(config.current().webhook_timeout_seconds)
    try:
        yield
    finally:
        _slots.release()
