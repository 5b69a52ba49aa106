"""The request at hand: each look through Flask's proxies costs more than what is looked up."""

from __future__ import annotations

from typing import Any

from flask import Request
from flask.globals import _cv_app, _cv_request


def asked() -> Request:
    """The request itself."""
    return _cv_request.get().request


def notes() -> Any:
    """What is remembered for as long as it lasts: `flask.g` itself."""
    return _cv_app.get().g
