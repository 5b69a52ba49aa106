"""Hourly deletion of expired sessions, mailed tokens and tickets."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from app import clock, db, jobs
from app.auth.mfa.models import UsedToken
from app.auth.models import MailedToken, SetupLink, SignInSession, StreamTicket

# For this long a used or expired token is reported as such, afterwards as unknown.
RETENTION = timedelta(days=1)
SETUP_LINKS_RETENTION = timedelta(days=30)
"""The time that admins see setup links after their expiry."""


@jobs.periodic(3600, "auth.purge")
def purge(payload: Mapping[str, object]) -> None:
    """Delete sessions and mailed tokens that expired long ago, and expired tickets."""
    # A process whose clock is ahead must not let another accept a used token again.
    for model in (SignInSession, MailedToken, UsedToken):
        db.purge(model.__table__, model.expires_at <= clock.now() - RETENTION)
    ended = SetupLink.expires_at <= clock.now() - SETUP_LINKS_RETENTION
    db.purge(SetupLink.__table__, ended)
    db.purge(StreamTicket.__table__, StreamTicket.expires_at <= clock.now())
