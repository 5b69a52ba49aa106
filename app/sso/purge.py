"""Deletes what sign-ins and readings of issuers have left behind."""

from __future__ import annotations

from datetime import timedelta

import sqlalchemy as sa

from app import clock, db, jobs
from app.sso.models import Flow, IssuerDocument, Refusal, SamlSession, SeenAssertion

RETENTION = timedelta(minutes=30)
REFUSAL_RETENTION = timedelta(days=30)
DOCUMENTS_RETENTION = timedelta(days=2)


@jobs.periodic(900, "sso.purge")
def purge(payload: object) -> None:
    """Delete expired flows, seen assertions, refusals, and names of sessions never begun."""
    now = clock.now()
    db.purge(Flow.__table__, Flow.expires_at <= now - RETENTION)
    db.purge(SeenAssertion.__table__, SeenAssertion.expires_at <= now)
    unused = sa.and_(SamlSession.session_id.is_(None), SamlSession.created_at <= now - RETENTION)
    db.purge(SamlSession.__table__, unused)
    db.purge(Refusal.__table__, Refusal.created_at <= now - REFUSAL_RETENTION)


@jobs.periodic(3600, "sso.purge_documents")
def purge_documents(payload: object) -> None:
    """Delete documents that nobody has read for two days."""
    db.purge(
        IssuerDocument.__table__, IssuerDocument.stored_at <= clock.now() - DOCUMENTS_RETENTION
    )
