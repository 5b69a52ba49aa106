"""Background jobs: renewal of what issuers publish, and purges of expired rows."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta

import sqlalchemy as sa

from app import clock, db, jobs
from app.errors import NotFound
from app.sso import service
from app.sso.models import OAUTH, Flow, IssuerDocument, Refusal, SamlSession, SeenAssertion
from app.sso.oauth import discovery
from app.sso.oauth.documents import RENEW
from app.sso.oauth.exchange import Unreachable
from app.types import JSONMapping

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


@jobs.job(RENEW)
def renew(payload: JSONMapping) -> None:
    """Read what a provider publishes; a failure is stored, and the former documents stay."""
    from app.sso.oauth import id_tokens  # imported on use: large

    account = service.find_active_account(payload["account_id"])
    with suppress(NotFound, Unreachable):
        connection = service.connection(account, OAUTH, payload["provider"])
        current = discovery.resolve(connection, fresh=True)
        if current.provider.openid:
            id_tokens.renew_keys(current)
