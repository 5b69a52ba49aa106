"""The request at hand: each look through Flask's proxies costs more than what is looked up."""

from __future__ import annotations

from typing import Any

from flask import Request, g, request


def asked() -> Request:
    """The request itself."""
    found: Request = request._get_current_object()  # type: ignore[attr-defined]
    return found


def notes() -> Any:
    """What is remembered for as long as it lasts: `flask.g` itself."""
    return g._get_current_object()
