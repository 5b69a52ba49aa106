"""The Flask application, without what none of its requests needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flask import Flask, Request
from flask.sessions import SecureCookieSession, SecureCookieSessionInterface

from app.rest import PREFIX


class _SessionsOfPages(SecureCookieSessionInterface):
    """Flask's own session, which carries the notices and tokens of forms: the API has none."""

    def open_session(self, app: Flask, request: Request) -> SecureCookieSession | None:
        """The session of a page; None for a call of the API."""
        return None if request.path.startswith(f"{PREFIX}/") else super().open_session(app, request)


class Application(Flask):
    """What serves requests."""

    session_interface = _SessionsOfPages()

    def ensure_sync(self, func: Callable[..., Any]) -> Callable[..., Any]:
        """The function itself: none is asynchronous, and Flask would look each time."""
        return func
