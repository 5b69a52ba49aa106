"""Tokens by which an account's directory provisions users at `/scim/v2`.

They are worth nothing elsewhere, and nothing else is a credential there. Two may be active, so that
the directory can change from one to the other.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import sqlalchemy as sa

from app import db
from app.accounts import service as accounts
from app.accounts.models import SYSTEM_ACCOUNT_ID, Account
from app.auth import last_use, owners, sessions, tokens
from app.auth import principal as principals
from app.auth.models import ScimToken
from app.auth.principal import AccountRef, Principal
from app.context import tenancy
from app.db import errors, versioned_cache
from app.db.versioned_cache import VersionCheck
from app.errors import Conflict, Forbidden, NotFound, Unauthorized
from app.ids import new_id

PREFIX = "svc_scim_"
RANDOM_CHARACTERS, HINT_CHARACTERS = 40, 4
PATTERN = re.compile(rf"{PREFIX}([A-Z]{{2}}[0-9]{{4}})_[A-Za-z0-9]{{{RANDOM_CHARACTERS}}}")
MAX_ACTIVE = 2
NOT_FOR_SYSTEM = "Users of the system account cannot be provisioned by SCIM."
ACTOR = "SCIM"


def list_active(account_id: str) -> Sequence[ScimToken]:
    """Return the account's tokens, newest first."""
    query = sa.select(ScimToken).where(ScimToken.account_id == account_id)
    return db.db.session.scalars(query.order_by(ScimToken.id.desc())).all()


def get(account_id: str, token_id: str) -> ScimToken:
    """Return a token of the account. Raises NotFound."""
    token = db.db.session.get(ScimToken, (account_id, token_id.lower()))
    if token is None:
        raise NotFound("There is no such SCIM token.")
    return token


def create(
    *, by: Principal, owner_id: str | None = None, id: str | None = None
) -> tuple[ScimToken, str]:
    """Create a token of the account acted in; returns it with its text, which is not stored.

    Raises Forbidden without a recent sign-in and in the system account, InvalidValues for an owner
    who is no admin, and Conflict if two are active or the `id` exists.
    """
    by.require_recent_sign_in()
    account = _account(by)
    created_by = owners.choose_admin(account.id, owner_id, by=by)
    text = f"{PREFIX}{account.account_code}_{tokens.random_characters(RANDOM_CHARACTERS)}"
    unique_id = errors.conflict_on_unique("scim_tokens", "id", "id", "This token exists.")
    with unique_id, db.transaction() as session:
        sessions.lock_user(by)
        accounts.get_for_update(account.id)
        token = ScimToken(
            account_id=account.id,
            id=id or new_id(),
            token_hash=tokens.digest(text),
            hint=text[-HINT_CHARACTERS:],
            created_by=created_by,
        )
        session.add(token)
        session.flush()
        if len(list_active(account.id)) > MAX_ACTIVE:
            raise Conflict(f"An account has at most {MAX_ACTIVE} SCIM tokens. Revoke one first.")
    return token, text


def revoke(token_id: str, *, by: Principal) -> None:
    """Delete a token, which stops working at once. Raises NotFound."""
    with db.transaction() as session:
        session.delete(get(by.require_account_id(), token_id))


def authenticate(text: str) -> Principal:
    """Return the directory that a token belongs to, acting in its account. Raises Unauthorized."""
    digest = tokens.digest(text)
    caller = versioned_cache.cache("scim_tokens").get(digest, lambda: _load(text, digest))
    if caller is None:
        raise Unauthorized("The SCIM token is invalid.")
    account, token_id = caller.home_and_user()
    last_use.record(ScimToken, account.id, token_id)
    return caller


def _account(by: Principal) -> AccountRef:
    if by.require_account_id() == SYSTEM_ACCOUNT_ID or by.account is None:
        raise Forbidden(NOT_FOR_SYSTEM)
    return by.account


def _load(text: str, digest: str) -> Principal | None:
    match = PATTERN.fullmatch(text)
    if match is None:
        return None
    account_id = sa.select(Account.id).where(Account.account_code == match[1]).scalar_subquery()
    query = sa.select(ScimToken).where(
        ScimToken.account_id == account_id, ScimToken.token_hash == digest
    )
    with tenancy.across_accounts():
        token = db.db.session.scalar(query.execution_options(populate_existing=True))
        account = principals.find_active_account(token.account_id) if token else None
    if token is None or account is None:
        return None
    version_check = VersionCheck("scim_tokens", (token.account_id, token.id), token.version)
    return Principal(account, account, user_id=token.id, name=ACTOR, key_check=version_check)
