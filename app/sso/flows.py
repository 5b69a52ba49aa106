"""Started sign-ins: single use, ten minutes, bound to browser, provider and account.

A flow is identified by its state, which begins with the account's code and passes through the
provider. A completed flow has a one-time code, which the client exchanges for tokens.
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

from app import clock, crypto, db
from app.accounts.models import Account
from app.auth import tokens
from app.sso.connections import Connection
from app.sso.models import Flow, FlowPurpose
from app.sso.refusals import StateRefused

LIFETIME = timedelta(minutes=10)
CODE_LIFETIME = timedelta(seconds=60)
LONGEST_STATE = 200
ALREADY_USED = "The state was used before."


@dataclass(frozen=True)
class StartedFlow:
    """A flow with its plain secrets: the state for the provider, the cookie for the browser."""

    flow: Flow
    state: str
    browser: str
    verifier: str


def start(
    connection: Connection,
    purpose: FlowPurpose,
    *,
    redirect_uri: str | None,
    client_state: str | None,
    callback_url: str | None = None,
) -> StartedFlow:
    """Start a flow; `callback_url` is the redirect address at an OAuth provider."""
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
    """Find the flow of a state, also if it is used or expired."""
    if not state or len(state) > LONGEST_STATE or "\0" in state:
        return None
    account_id = _account_id(state)
    query = sa.select(Flow).where(
        Flow.account_id == account_id, Flow.state_hash == tokens.digest(state)
    )
    return db.db.session.scalar(query)


def consume(flow: Flow, category: str, provider: str, browser: str | None) -> None:
    """Mark a flow as used. Raises StateRefused if it is used, expired or of another browser."""
    if (flow.category, flow.provider_name) != (category, provider):
        raise StateRefused("state", "The state belongs to another provider.")
    if flow.used_at is not None:  # checked before the cookie, which is deleted on use
        raise StateRefused("state", ALREADY_USED)
    # API clients may have no cookies; they prove themselves by their own state.
    # A sign-out changes nothing more here.
    if flow.purpose not in (FlowPurpose.API, FlowPurpose.LOGOUT) and not is_from_browser(
        flow, browser
    ):
        raise StateRefused("state", "The sign-in was started in another browser.")
    if flow.expires_at <= clock.now():
        raise StateRefused("state", "The sign-in took longer than ten minutes.")
    unused = (Flow.account_id == flow.account_id, Flow.id == flow.id, Flow.used_at.is_(None))
    with db.transaction() as session:
        result: Any = session.execute(sa.update(Flow).where(*unused).values(used_at=clock.now()))
    if result.rowcount != 1:
        raise StateRefused("state", ALREADY_USED)


def decrypt(stored: str) -> str:
    """Decrypt a secret of a flow. Raises StateRefused if its key was removed."""
    try:
        return crypto.decrypt(stored)
    except InvalidToken:
        raise StateRefused("state", "Its encryption key was removed.") from None


def issue_code(
    session: Session, flow: Flow, account: Account, *, needs_state: bool, **outcome: object
) -> str:
    """Issue a flow's one-time code in the open transaction."""
    code = tokens.random_token(account.account_code)
    values = {
        "code_hash": tokens.digest(code),
        "code_needs_state": needs_state,
        "code_expires_at": clock.now() + CODE_LIFETIME,
        **outcome,
    }
    same_flow = (Flow.account_id == flow.account_id, Flow.id == flow.id)
    session.execute(sa.update(Flow).where(*same_flow).values(**values))
    return code


def find_code(code: str) -> Flow | None:
    """Find the flow of an unused code, also if expired."""
    if not code or len(code) > LONGEST_STATE or "\0" in code:
        return None
    same_code = (Flow.account_id == _account_id(code), Flow.code_hash == tokens.digest(code))
    return db.db.session.scalar(sa.select(Flow).where(*same_code))


def redeem(flow: Flow) -> None:
    """Mark a flow's code as used. Raises StateRefused if it is expired or used."""
    if flow.code_expires_at is None or flow.code_expires_at <= clock.now():
        raise StateRefused("code", "The one-time code has expired.")
    same_flow = (Flow.account_id == flow.account_id, Flow.id == flow.id)
    same_code = (Flow.code_hash == flow.code_hash, Flow.code_hash.is_not(None))
    with db.transaction() as session:
        result: Any = session.execute(
            sa.update(Flow).where(*same_flow, *same_code).values(code_hash=None)
        )
    if result.rowcount != 1:
        raise StateRefused("code", "The one-time code was used before.")


def is_from_browser(flow: Flow, browser: str | None) -> bool:
    """Whether the cookie is that of the browser which started the flow."""
    return hmac.compare_digest(flow.browser_hash, tokens.digest(browser or ""))


def _account_id(secret: str) -> object:
    code = secret.partition("-")[0]
    return sa.select(Account.id).where(Account.account_code == code).scalar_subquery()
