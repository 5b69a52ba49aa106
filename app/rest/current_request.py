"""The request at hand: each look through the framework costs more than what is looked up."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from flask import Request
from flask.globals import _cv_app, _cv_request


def get_request() -> Request:
    """The request itself."""
    return _cv_request.get().request


def get_header(name: str) -> str | None:
    """A header of it, if it has one."""
    found: str | None = _cv_request.get().request.environ.get(_key(name))
    return found


@lru_cache
def _key(name: str) -> str:
    """Where WSGI keeps a header, but for those of the body's type and length."""
    return f"HTTP_{name.upper().replace('-', '_')}"


def get_g() -> Any:
    """What is remembered for as long as it lasts: `flask.g` itself."""
    return _cv_app.get().g
