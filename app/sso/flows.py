"""Started sign-ins: single use, ten minutes, bound to the browser, the provider and the account.

A flow is found by its state, which travels to the provider and back and leads with the account's
code. When it ends well it carries a one-time code, which the client trades for tokens.
"""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import sqlalchemy as sa
from cryptography.fernet import InvalidToken
from sqlalchemy.orm import Session

from app import clock, crypto, db, jobs
from app.accounts.models import Account
from app.auth import tokens
from app.sso.connections import Connection
from app.sso.models import API, Flow, Refusal, SeenAssertion
from app.sso.refusals import StateRefused

LIFETIME = timedelta(minutes=10)
CODE_LIFETIME = timedelta(seconds=60)
RETENTION = timedelta(minutes=30)
REFUSAL_RETENTION = timedelta(days=30)
LONGEST_STATE = 200
ALREADY_USED = "The state was used before."


@dataclass(frozen=True)
class StartedFlow:
    """A flow with what is kept only by others: the provider its state, the browser its cookie."""

    flow: Flow
    state: str
    browser: str
    verifier: str


def start(
    connection: Connection,
    purpose: str,
    *,
    redirect_uri: str | None,
    client_state: str | None,
    callback_url: str | None = None,
) -> StartedFlow:
    """Start a flow; an OAuth provider is told `callback_url` as the address to return to."""
    state, browser = tokens.random_token(connection.account.account_code), secrets.token_urlsafe(32)
    verifier = secrets.token_urlsafe(48)
    flow = Flow(
        account_id=connection.account.id,
        category=connection.provider.category,
        provider_name=connection.provider.name,
        purpose=purpose,
        state_hash=tokens.digest(state),
        browser_hash=tokens.digest(browser),
        verifier=crypto.encrypt(verifier),
        nonce=secrets.token_urlsafe(32),
        request_id=f"_{secrets.token_hex(20)}",
        row_id=connection.row_id,
        callback_url=callback_url,
        redirect_uri=redirect_uri,
        client_state=client_state,
        expires_at=clock.now() + LIFETIME,
    )
    with db.transaction() as session:
        session.add(flow)
        session.flush()
    return StartedFlow(flow, state, browser, verifier)


def find(state: str) -> Flow | None:
    """The flow of a state, whatever has become of it."""
    if not state or len(state) > LONGEST_STATE or "\0" in state:
        return None
    mine = _account_of(state)
    found = sa.select(Flow).where(Flow.account_id == mine, Flow.state_hash == tokens.digest(state))
    return db.db.session.scalar(found)


def consume(flow: Flow, category: str, provider: str, browser: str | None) -> None:
    """Use a flow up. Raises StateRefused for any but its own provider and browser, or too late."""
    if (flow.category, flow.provider_name) != (category, provider):
        raise StateRefused("state", "The state belongs to another provider.")
    if flow.used_at is not None:  # before the cookie, which is gone with its use
        raise StateRefused("state", ALREADY_USED)
    # A client of the API may have no cookies; it knows its own state instead.
    if flow.purpose != API and not is_of_browser(flow, browser):
        raise StateRefused("state", "The sign-in was begun in another browser.")
    if flow.expires_at <= clock.now():
        raise StateRefused("state", "The sign-in took longer than ten minutes.")
    mine = (Flow.account_id == flow.account_id, Flow.id == flow.id, Flow.used_at.is_(None))
    with db.transaction() as session:
        taken: Any = session.execute(sa.update(Flow).where(*mine).values(used_at=clock.now()))
    if taken.rowcount != 1:
        raise StateRefused("state", ALREADY_USED)


def pkce_verifier(flow: Flow) -> str:
    """The secret of PKCE. Raises StateRefused where no key reads it any more."""
    return decrypt(flow.verifier)


def decrypt(stored: str) -> str:
    """What a flow keeps encrypted. Raises StateRefused where no key reads it any more."""
    try:
        return crypto.decrypt(stored)
    except InvalidToken:
        raise StateRefused("state", "It was begun under a key that is gone.") from None


def issue_code(
    session: Session, flow: Flow, account: Account, *, needs_state: bool, **outcome: object
) -> str:
    """A one-time code for what a flow came to, as part of the open transaction."""
    code = tokens.random_token(account.account_code)
    values = {
        "code_hash": tokens.digest(code),
        "code_needs_state": needs_state,
        "code_expires_at": clock.now() + CODE_LIFETIME,
        **outcome,
    }
    mine = (Flow.account_id == flow.account_id, Flow.id == flow.id)
    session.execute(sa.update(Flow).where(*mine).values(**values))
    return code


def find_code(code: str) -> Flow | None:
    """The flow that a code was given for and that has not been redeemed, old or not."""
    if not code or len(code) > LONGEST_STATE or "\0" in code:
        return None
    mine = (Flow.account_id == _account_of(code), Flow.code_hash == tokens.digest(code))
    return db.db.session.scalar(sa.select(Flow).where(*mine))


def redeem(flow: Flow) -> None:
    """Use the code of a flow up. Raises StateRefused when it is too old, or another was faster."""
    if flow.code_expires_at is None or flow.code_expires_at <= clock.now():
        raise StateRefused("code", "The one-time code is too old.")
    mine = (Flow.account_id == flow.account_id, Flow.id == flow.id)
    given = (Flow.code_hash == flow.code_hash, Flow.code_hash.is_not(None))
    with db.transaction() as session:
        taken: Any = session.execute(sa.update(Flow).where(*mine, *given).values(code_hash=None))
    if taken.rowcount != 1:
        raise StateRefused("code", "The one-time code was used before.")


def is_of_browser(flow: Flow, browser: str | None) -> bool:
    """Whether a flow was begun in the browser that shows this cookie."""
    return hmac.compare_digest(flow.browser_hash, tokens.digest(browser or ""))


def _account_of(secret: str) -> object:
    code = secret.partition("-")[0]
    return sa.select(Account.id).where(Account.account_code == code).scalar_subquery()


@jobs.periodic(900, "sso.purge")
def purge(payload: object) -> None:
    """Remove flows, seen assertions and refusals that are over."""
    now = clock.now()
    db.purge(Flow.__table__, Flow.expires_at <= now - RETENTION)
    db.purge(SeenAssertion.__table__, SeenAssertion.expires_at <= now)
    db.purge(Refusal.__table__, Refusal.created_at <= now - REFUSAL_RETENTION)
