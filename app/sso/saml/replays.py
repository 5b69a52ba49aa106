"""Used assertions and logout requests, each of which works once."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from app import clock
from app.auth import tokens
from app.sso.connections import Connection
from app.sso.models import SeenAssertion
from app.sso.refusals import SignInRefused


def mark_used(session: Session, connection: Connection, id: str, expires_at: datetime) -> None:
    """Mark the id of a message as used. Raises SignInRefused if it was used before."""
    issuer = connection.config["idp_entity_id"]
    assertion = SeenAssertion(
        account_id=connection.account.id,
        assertion_hash=tokens.digest(f"{issuer}\n{id}"),
        expires_at=max(expires_at, clock.now()),
    )
    try:
        session.add(assertion)
        session.flush()
    except IntegrityError:
        raise SignInRefused("replay", "The assertion was used before.") from None
