"""Auditing reused refresh tokens (contract section 3)."""

from __future__ import annotations

from app import events
from app.audit import append
from app.audit.append import UPDATE


@events.subscribe(events.RefreshTokenReused)
def record_token_reuse(event: events.RefreshTokenReused) -> None:
    """One entry for the session that ended because of a reused refresh token."""
    value = ("revoked_at", None, append.text(event.moment))
    reason = {"reason": "refresh_token_reused"}
    append.record(event.account_id, UPDATE, "sessions", event.session_id, [value], reason)
