"""On SQLite, the requests of a process are carried out one after another.

There a request computes nearly all the time, and each statement would let another thread have
Python's lock: threads that compute at once take turns so often that all of them are done later.
Nobody waits for one that takes long: those behind it go along beside it. On PostgreSQL, whose
answers are waited for, there is nothing to win.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from flask import Flask

from app.db import engine

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

LONG_SECONDS = 0.01
"""A request that is under way for so long keeps no other waiting."""

View = Callable[["WSGIEnvironment", Any], Iterable[bytes]]


def init_app(app: Flask) -> None:
    """Have what an application serves be paced, if that pays with its database."""
    with app.app_context():
        if engine.current_engine().dialect.name == "sqlite":
            app.wsgi_app = SerialMiddleware(app.wsgi_app)  # type: ignore[method-assign]


class SerialMiddleware:
    """A WSGI application whose requests, as long as they are short, never run at once."""

    def __init__(self, application: View) -> None:
        self._application = application
        self._turn = threading.Lock()
        self._begun = 0.0  # when whoever has the turn got it

    def __call__(self, environ: WSGIEnvironment, start_response: Any) -> Iterable[bytes]:
        """Answer a request; a body that is streamed is read outside of its turn."""
        has_turn = self._turn.acquire(blocking=False) or self._awaited()
        try:
            if has_turn:
                self._begun = time.monotonic()
            return self._application(environ, start_response)
        finally:
            if has_turn:
                self._turn.release()

    def _awaited(self) -> bool:
        """Whether the turn came before somebody had it for long."""
        while (left := self._begun + LONG_SECONDS - time.monotonic()) > 0:
            if self._turn.acquire(timeout=left):
                return True
        return False
