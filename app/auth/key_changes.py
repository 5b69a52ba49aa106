"""Changes of API keys: new secrets with an overlap, other names and networks."""

from __future__ import annotations

from datetime import timedelta

from app import clock, db
from app.accounts import service as accounts
from app.accounts.types import Body
from app.auth import api_keys, owners, sessions, tokens
from app.auth.models import ApiKey
from app.auth.principal import Principal
from app.errors import Forbidden


def rotate(key_id: str, overlap: timedelta, *, by: Principal) -> tuple[ApiKey, str]:
    """Give a key of the caller or a service user a new secret; the present one works for `overlap`.

    Returns the key with its secret. Raises NotFound, Forbidden, or Conflict if it is revoked.
    """
    by.refuse_portal_of_another()
    with db.transaction() as session:
        key = _changeable(key_id, by)
        # Its secret acts as another user.
        if key.created_by != by.user_id and not (
            by.is_admin and owners.may_name(key.account_id, key.created_by, by=by)
        ):
            raise Forbidden("Only its owner can rotate an API key.")
        secret = api_keys.new_secret(key.account_code)
        key.previous_hash, key.key_hash = key.key_hash, tokens.digest(secret)
        key.previous_valid_until = clock.now() + overlap
        key.hint = secret[-api_keys.HINT_CHARACTERS :]
        _mark_changed(key)
        session.flush()
    return key, secret


def change(key_id: str, body: Body, *, by: Principal) -> ApiKey:
    """Change a key's name, description or networks.

    Raises NotFound, Forbidden, InvalidValues, or Conflict if it is revoked.
    """
    with db.transaction() as session:
        key = _changeable(key_id, by)
        if "name" in body:
            key.name = accounts.label(body["name"])
        if "description" in body:
            key.description = body["description"]
        if "ip_addresses" in body:
            key.ip_addresses = api_keys.networks_of(body["ip_addresses"])
        _mark_changed(key)
        session.flush()
    return key


def _changeable(key_id: str, by: Principal) -> ApiKey:
    by.require_recent_sign_in()
    sessions.lock_user(by)
    return api_keys.get_locked(key_id, by=by)


def _mark_changed(key: ApiKey) -> None:
    key.updated_at = clock.now()
    key.version += 1
