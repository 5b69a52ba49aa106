"""API keys: a key acts as the user who made it, in that user's account only (spec 4.5, 5.11)."""

from __future__ import annotations

import re
import secrets
import string
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa

from app import clock, db, events
from app.accounts import service as accounts
from app.accounts.models import Account
from app.auth import principal as principals
from app.auth import sessions, tokens
from app.auth.models import ApiKey
from app.auth.principal import Principal
from app.context import tenancy
from app.db import counts, errors, versioned_cache
from app.db.versioned_cache import VersionCheck
from app.errors import Conflict, InvalidValues, NotFound, Unauthorized, problem
from app.ids import new_id

PREFIX = "svc_sk_"
RANDOM_CHARACTERS = 32
ALPHABET = string.ascii_letters + string.digits
FORM = re.compile(rf"{PREFIX}([A-Z]{{2}}[0-9]{{4}})_[A-Za-z0-9]{{{RANDOM_CHARACTERS}}}")
NOTE_USE_EVERY = timedelta(minutes=1)


@dataclass
class KnownKey:
    """What of a key is cached under its version, and whom it stood for at last."""

    id: str
    account_id: str
    user_id: str
    scopes: Mapping[str, Any] | None
    expires_at: datetime | None
    version_check: VersionCheck
    _last: tuple[Principal | None, Principal | None] = field(default=(None, None), repr=False)

    def standing_for(self, owner: Principal) -> Principal:
        """Its owner, as far as the key goes; the same object for the same owner."""
        known, caller = self._last
        if caller is None or known is not owner:
            caller = replace(
                owner, api_key_id=self.id, scopes=self.scopes, key_check=self.version_check
            )
            self._last = owner, caller
        return caller


def create(body: Mapping[str, Any], *, by: Principal, id: str | None = None) -> tuple[ApiKey, str]:
    """A new key of the caller; returns its text too, which nobody sees again.

    Raises Conflict where there is one of that id.
    """
    by.refuse_key("An API key cannot create API keys.")
    by.require_recent_sign_in()
    by.one_account()
    name = accounts.label(body["name"])
    if body.get("expires_at") and body["expires_at"] <= clock.now():
        wrong = problem("expires_at", "invalid_datetime", "Must lie in the future.")
        raise InvalidValues([wrong])
    home, user_id = by.home_and_user()
    random = "".join(secrets.choice(ALPHABET) for _ in range(RANDOM_CHARACTERS))
    text = f"{PREFIX}{home.account_code}_{random}"
    there = errors.conflict_on_unique("api_keys", "id", "id", "There is such a key already.")
    with there, db.transaction() as session:
        sessions.hold(by)
        key = ApiKey(
            account_id=home.id,
            id=id or new_id(),
            created_by=user_id,
            key_hash=tokens.digest(text),
            name=name,
            description=body.get("description"),
            expires_at=body.get("expires_at"),
            scopes=body.get("scopes"),
        )
        session.add(key)
        session.flush()
    return key, text


def page(
    skip: int, limit: int, *, by: Principal, most: int | None = None
) -> tuple[list[ApiKey], int]:
    """The caller's keys, an admin's the account's, newest first; and how many there are.

    The total is counted to `most` + 1 at most.
    """
    visible = _visible(by)
    query = sa.select(ApiKey).where(*visible).order_by(ApiKey.id.desc())
    rows = db.db.session.scalars(query.offset(skip).limit(limit))
    return list(rows), counts.count_up_to(ApiKey, visible, most)


def get(key_id: str, *, by: Principal) -> ApiKey:
    """One key that the caller may see. Raises NotFound."""
    return _found(db.db.session.scalar(_named(key_id, by)))


def revoke(key_id: str, *, by: Principal) -> ApiKey:
    """Revoke a key; the next request with it is refused. Raises NotFound or Conflict."""
    by.one_account()
    with db.transaction() as session:
        # Locked: of two who revoke at once, one is told that it is done.
        key = _found(session.scalar(_named(key_id, by).with_for_update(of=ApiKey)))
        if key.is_revoked:
            raise Conflict("This key is revoked already.")
        key.revoked_by = by.user_id
        _end(key)
        session.flush()
        return key


def active_of(account_id: str, user_id: str) -> list[ApiKey]:
    """The keys that act as a user, by name."""
    chosen = sa.select(ApiKey).where(*_unrevoked(account_id, user_id)).order_by(ApiKey.name)
    return [key for key in db.db.session.scalars(chosen) if key.is_active]


def revoke_all(account_id: str, user_id: str) -> None:
    """Revoke every key of a user, as the user does or whoever proves to be the user."""
    with db.transaction() as session:
        chosen = sa.select(ApiKey).where(*_unrevoked(account_id, user_id))
        for key in session.scalars(chosen.with_for_update(of=ApiKey)):
            key.revoked_by = user_id
            _end(key)


@events.subscribe(events.AddressVerified)
def _revoke_of_who_came_first(event: events.AddressVerified) -> None:
    for key in db.db.session.scalars(
        sa.select(ApiKey).where(*_unrevoked(event.account_id, event.user_id))
    ):
        _end(key)


def _unrevoked(account_id: str, user_id: str) -> tuple[Any, ...]:
    return (ApiKey.account_id == account_id, ApiKey.created_by == user_id, ~ApiKey.is_revoked)


def _end(key: ApiKey) -> None:
    # Its use is no change of the key, but its end is: the column does not follow by itself.
    key.is_revoked, key.revoked_at = True, clock.now()
    key.updated_at = key.revoked_at
    key.version += 1


def caller(text: str) -> Principal:
    """Who a key stands for. Raises Unauthorized."""
    key = versioned_cache.cache("api_keys").get(tokens.digest(text), lambda: _find(text))
    if key is None or (key.expires_at and key.expires_at <= clock.now()):
        raise Unauthorized("The API key is not valid.")
    owner = principals.of_user(key.account_id, key.user_id)
    if owner is None:
        raise Unauthorized("The API key is not valid any more.")
    _note_use(key)
    return key.standing_for(owner)


def _find(text: str) -> KnownKey | None:
    form = FORM.fullmatch(text)
    if form is None:
        return None
    code = form[1]
    home = sa.select(Account.id).where(Account.account_code == code).scalar_subquery()
    chosen = sa.select(ApiKey).where(
        ApiKey.account_id == home, ApiKey.key_hash == tokens.digest(text)
    )
    with tenancy.across_accounts():
        key = db.db.session.scalar(chosen.execution_options(populate_existing=True))
    if key is None or key.is_revoked:
        return None
    version_check = VersionCheck("api_keys", (key.account_id, key.id), key.version)
    return KnownKey(
        key.id, key.account_id, key.created_by, key.scopes, key.expires_at, version_check
    )


def _note_use(key: KnownKey) -> None:
    # One write per key and minute, whatever the number of processes: the row says when it was.
    noted, now = versioned_cache.cache("api_keys_noted"), clock.now()
    known = noted.get(key.id, lambda: now - NOTE_USE_EVERY)
    if known is None or now - known < NOTE_USE_EVERY:
        return
    noted.put(key.id, now)
    late = sa.or_(ApiKey.last_used_at.is_(None), ApiKey.last_used_at <= now - NOTE_USE_EVERY)
    mine = (ApiKey.account_id == key.account_id, ApiKey.id == key.id, late)
    with tenancy.in_account(key.account_id), db.transaction() as session:
        session.execute(sa.update(ApiKey).where(*mine).values(last_used_at=now))


def _named(key_id: str, by: Principal) -> sa.Select[ApiKey]:
    return sa.select(ApiKey).where(ApiKey.id == key_id.lower(), *_visible(by))


def _found(key: ApiKey | None) -> ApiKey:
    if key is None:
        raise NotFound("There is no such API key.")
    return key


def _visible(by: Principal) -> list[Any]:
    if by.account_id is None:
        return []
    account = [ApiKey.account_id == by.account_id]
    return account if by.is_admin else [*account, ApiKey.created_by == by.user_id]
