"""Carries a new secret from the form that creates it to the page that shows it once.

Answering the form with the secret would create another one on every reload. Instead the secret
travels in the form cookie: encrypted with the service's key, valid for a few minutes and for the
session that created it, and removed when it is shown.
"""

from __future__ import annotations

from datetime import timedelta

import orjson
from cryptography.fernet import InvalidToken
from flask import g, session

from app import clock, crypto

LIFETIME = timedelta(minutes=5)
SESSION_KEY = "handover"


def store(owner_id: str, secret: str) -> None:
    """Store the secret of the key or webhook with this id for the next page."""
    expires_at = clock.iso(clock.now() + LIFETIME)
    payload = [g.console_session_id, owner_id, expires_at, secret]
    session[SESSION_KEY] = crypto.encrypt(orjson.dumps(payload).decode())


def pop(owner_id: str) -> str | None:
    """Remove and return the stored secret; None if it is gone, expired or another's."""
    try:
        payload = orjson.loads(crypto.decrypt(session.pop(SESSION_KEY, "")))
    except InvalidToken:
        return None
    session_id, stored_id, expires_at, secret = payload
    matches = (session_id, stored_id) == (g.console_session_id, owner_id)
    return str(secret) if matches and clock.parse(expires_at) > clock.now() else None
