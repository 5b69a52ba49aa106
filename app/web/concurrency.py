"""On SQLite, a process runs its short requests one after another.

With SQLite a request is CPU-bound, and every statement releases the GIL: concurrent threads switch
so often that all of them finish later. A long request delays nobody: after 10 ms the others run
beside it. On PostgreSQL, where requests wait for the server, this gains nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from flask import Flask

from app.db import engine

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

LONG_SECONDS = 0.01
"""A request that runs longer than this delays no other."""

View = Callable[["WSGIEnvironment", "StartResponse"], Iterable[bytes]]


def init_app(app: Flask) -> None:
    """Wrap the WSGI application if its database is SQLite."""
    with app.app_context():
        if engine.current_engine().dialect.name == "sqlite":
            app.wsgi_app = SerialMiddleware(app.wsgi_app)  # type: ignore[method-assign]


class SerialMiddleware:
    """WSGI middleware that runs short requests one at a time."""

    def __init__(self, application: View) -> None:
        self._application = application
        self._lock = threading.Lock()
        self._started = 0.0  # when the current holder acquired the lock

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        # A streamed body is iterated after the lock is released.
        is_locked = self._lock.acquire(blocking=False) or self._acquire_in_time()
        try:
            if is_locked:
                self._started = time.monotonic()
            return self._application(environ, start_response)
        finally:
            if is_locked:
                self._lock.release()

    def _acquire_in_time(self) -> bool:
        """Wait for the lock until its holder has had it for long."""
        while (left := self._started + LONG_SECONDS - time.monotonic()) > 0:
            if self._lock.acquire(timeout=left):
                return True
        return False
