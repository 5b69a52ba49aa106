"""A secret on its way from the form that made it to the page that shows it, once.

A page that answered the form itself would make another secret whenever it is loaded again. In
between, the secret is in the browser's form cookie: encrypted with a key that only the service
has, good for a few minutes and for the session that made it, gone when shown.
"""

from __future__ import annotations

from datetime import timedelta

import orjson
from cryptography.fernet import InvalidToken
from flask import g, session

from app import clock, crypto

LIFETIME = timedelta(minutes=5)
PLACE = "handover"


def leave(of: str, secret: str) -> None:
    """Leave the secret of what has the id `of` for the next page."""
    until = clock.iso(clock.now() + LIFETIME)
    told = [g.console_session_id, of, until, secret]
    session[PLACE] = crypto.encrypt(orjson.dumps(told).decode())


def take(of: str) -> str | None:
    """The secret of what has the id `of`; None once it was taken, or it is too late."""
    try:
        told = orjson.loads(crypto.decrypt(session.pop(PLACE, "")))
    except InvalidToken:
        return None
    session_id, whose, until, secret = told
    fits = (session_id, whose) == (g.console_session_id, of) and clock.parse(until) > clock.now()
    return str(secret) if fits else None
