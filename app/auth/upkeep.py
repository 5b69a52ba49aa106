"""Forgetting tokens that nobody can use any more, once an hour (contract section 11)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from app import clock, db, jobs
from app.auth.models import MailedToken, SignInSession

# A used or late token is answered as such for so long; then it is like any that never was.
KEPT = timedelta(days=1)


@jobs.periodic(3600, "auth.purge")
def purge(payload: Mapping[str, Any]) -> None:
    """Remove sign-ins and mailed tokens that are over."""
    for model in (SignInSession, MailedToken):
        db.purge(model.__table__, model.expires_at <= clock.now() - KEPT)
