"""A form that was sent after its session had ended, or long after the sign-in where that must be
recent: kept through signing in, and shown again.

What was typed goes with the page to sign in, encrypted. The browser then sends it on to where it
was going (307), where its page is shown filled in, with all writing refused: nothing happens
before its sender has seen it again. Who signs in by a provider does so in another tab, and comes
back to send it on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import orjson
from cryptography.fernet import InvalidToken
from flask import current_app, request
from werkzeug.datastructures import ImmutableMultiDict
from werkzeug.exceptions import HTTPException

from app import crypto, db
from app.errors import BadRequest

FIELD = "unsent"
LONGEST = 200_000
NOT_YET = "You have signed in again. Nothing is done yet: check the form and send it."
UNKEPT = ("csrf_token", FIELD)
View = TypeVar("View", bound=Callable[..., Any])


def shows_form(view: View) -> View:
    """Mark what takes a form of another page, and shows it again when it is refused."""
    view.shows_form = True  # type: ignore[attr-defined]
    return view


def kept() -> str | None:
    """What was just sent, for the page to sign in; None where no page can show it again."""
    if request.method != "POST" or not (_shows_form() or _has_page()):
        return None
    values = [
        (name, value)
        for name, value in request.form.items(multi=True)
        if name not in UNKEPT and "password" not in name
    ]
    told = orjson.dumps([FIELD, request.full_path.rstrip("?"), values, bool(request.files)])
    return crypto.encrypt(told.decode()) if len(told) <= LONGEST else None


def target(text: str) -> str | None:
    """The address that what was kept was going to."""
    found = _read(text)
    return found[0] if found else None


def lacks_file(text: str) -> bool:
    """Whether a file was sent along, which no page can keep."""
    found = _read(text)
    return found is not None and found[2]


def shown_again() -> Any:
    """The page of the form that was kept, if this request brings one."""
    found = _read(request.form.get(FIELD, "")) if request.method == "POST" else None
    if found is None or found[0] != request.full_path.rstrip("?"):
        return None
    request.form = ImmutableMultiDict([(name, value) for name, value in found[1]])
    view = current_app.view_functions[request.endpoint or ""]
    with db.refuse_transactions(BadRequest(NOT_YET)):
        return current_app.ensure_sync(view)(**(request.view_args or {}))


def _shows_form() -> bool:
    view = current_app.view_functions[request.endpoint or ""]
    return getattr(view, "shows_form", False)


def _has_page() -> bool:
    # A button's address has none, and what it does might be more than writing.
    try:
        current_app.create_url_adapter(request).match(method="GET")  # type: ignore[union-attr]
    except HTTPException:
        return False
    return True


def _read(text: str) -> tuple[str, list[tuple[str, str]], bool] | None:
    try:
        kind, path, values, with_file = orjson.loads(crypto.decrypt(text))
    except (InvalidToken, ValueError):
        return None
    return (path, values, with_file) if kind == FIELD else None
