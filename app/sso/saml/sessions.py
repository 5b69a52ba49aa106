"""Sessions that began by SAML, for single logout, and messages that work once."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from app import clock, db, events
from app.auth import sessions, tokens
from app.auth.mfa import challenges
from app.auth.models import SignInSession
from app.sso.connections import Connection
from app.sso.models import Flow, SamlSession, SeenAssertion
from app.sso.refusals import SignInRefused, StateRefused

if TYPE_CHECKING:
    from app.sso.saml.assertions import Assertion


def record(session: Session, connection: Connection, flow: Flow, assertion: Assertion) -> None:
    """Record how the identity provider names the session that a flow will start."""
    name = assertion.name
    session.add(
        SamlSession(
            account_id=flow.account_id,
            id=flow.id,
            provider_name=connection.provider.name,
            issuer=assertion.claimed.issuer,
            subject=name.value,
            name_format=name.format,
            name_qualifier=name.qualifier,
            sp_name_qualifier=name.sp_qualifier,
            session_index=assertion.session_index,
        )
    )


def attach(flow: Flow, user_id: str, session_id: str) -> None:
    """Attach the new session to the name that its flow brought.

    Raises StateRefused, and ends the session, if the identity provider has ended it meanwhile.
    """
    own = (SamlSession.account_id == flow.account_id, SamlSession.id == flow.id)
    with db.transaction() as session:
        result: Any = session.execute(
            sa.update(SamlSession).where(*own).values(session_id=session_id)
        )
    if not result.rowcount:
        sessions.end(flow.account_id, user_id, session_id)
        raise StateRefused("logout", "The identity provider ended the session.")


def attach_challenge(flow: Flow, challenge_id: str) -> None:
    """Note the challenge of the second factor that will start the session of a flow.

    Raises StateRefused, and voids the challenge, if the identity provider has ended it meanwhile.
    """
    own = (SamlSession.account_id == flow.account_id, SamlSession.id == flow.id)
    with db.transaction() as session:
        result: Any = session.execute(
            sa.update(SamlSession).where(*own).values(challenge_id=challenge_id)
        )
        if not result.rowcount:
            challenges.void(challenge_id, flow.account_id)
    if not result.rowcount:
        raise StateRefused("logout", "The identity provider ended the session.")


@events.subscribe(events.MfaSessionStarted)
def _attach_started(event: events.MfaSessionStarted) -> None:
    statement = (
        sa.update(SamlSession)
        .where(SamlSession.account_id == event.account_id)
        .where(SamlSession.challenge_id == event.session_id, SamlSession.session_id.is_(None))
        .values(session_id=event.session_id)
    )
    db.db.session.execute(statement)


def find(account_id: str, session_id: str) -> SamlSession | None:
    """Find how the identity provider names a session."""
    own = (SamlSession.account_id == account_id, SamlSession.session_id == session_id)
    return db.db.session.scalar(sa.select(SamlSession).where(*own))


def end(connection: Connection, subject: str, session_indexes: Collection[str]) -> int:
    """End the sessions of a name, or some of them, in the open transaction; returns their number.

    One-time codes that are not exchanged yet stop working.
    """
    conditions = [
        SamlSession.account_id == connection.account.id,
        SamlSession.provider_name == connection.provider.name,
        SamlSession.issuer == connection.config["idp_entity_id"],
        SamlSession.subject == subject,
    ]
    if session_indexes:
        conditions.append(SamlSession.session_index.in_(session_indexes))
    # Locked before their sessions are looked up: another request may be attaching one.
    query = sa.select(SamlSession).where(*conditions).with_for_update()
    rows = db.db.session.scalars(query.execution_options(populate_existing=True)).all()
    sessions_of = sa.select(SignInSession.id, SignInSession.user_id).where(
        SignInSession.account_id == connection.account.id,
        SignInSession.id.in_([row.session_id for row in rows if row.session_id]),
    )
    user_ids = {row.id: row.user_id for row in db.db.session.execute(sessions_of)}
    for row in rows:
        user_id = user_ids.get(row.session_id or "")
        if user_id and row.session_id:
            sessions.end(row.account_id, user_id, row.session_id)
        elif row.challenge_id:
            challenges.void(row.challenge_id, row.account_id)
        same_flow = (Flow.account_id == row.account_id, Flow.id == row.id)
        db.db.session.execute(sa.update(Flow).where(*same_flow).values(code_hash=None))
        db.db.session.delete(row)
    return len(rows)


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
