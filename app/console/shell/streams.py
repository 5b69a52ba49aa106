"""Tickets for the streams that keep the console's pages up to date (static/console/live.js)."""

from __future__ import annotations

from app.auth import stream_credentials
from app.console.shell import scopes
from app.console.shell.access import ADMIN
from app.console.shell.blueprint import ACCOUNT, page


@page(f"{ACCOUNT}/stream-tickets", "POST", role=ADMIN)
def create_stream_ticket(account_id: str) -> tuple[dict[str, str], int]:
    """Create a ticket for a stream of an account; the stream ends with the session."""
    credential = stream_credentials.of_session(scopes.account_scope(account_id).by)
    return {"ticket": stream_credentials.issue_ticket(credential)}, 201
