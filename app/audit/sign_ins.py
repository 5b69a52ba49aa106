"""What of signing in is audited beside the changes of tables (contract section 3)."""

from __future__ import annotations

from app import events
from app.audit import append
from app.audit.append import UPDATE


@events.subscribe(events.RefreshTokenReused)
def note_reuse(event: events.RefreshTokenReused) -> None:
    """The session that ended as somebody had kept one of its older tokens."""
    value = ("revoked_at", None, append.text(event.moment))
    reason = {"reason": "refresh_token_reused"}
    append.note(event.account_id, UPDATE, "sessions", event.session_id, [value], reason)
