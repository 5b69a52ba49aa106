"""Changing an account's settings: API keys and old sessions may change little of them."""

from __future__ import annotations

from app import db
from app.accounts import sign_in_settings, tenants
from app.accounts.domains import senders
from app.accounts.domains import service as domains
from app.accounts.models import Account
from app.accounts.types import Body
from app.auth.principal import Principal

PLAIN = {"name", "attributes"}
NO_SETTINGS = "API keys cannot change sign-in settings or redirect URIs."


def change(account_id: str, body: Body, *, by: Principal) -> Account:
    """Change an account's name and settings. Raises InvalidValues, Forbidden or as senders do.

    API keys change the name and attributes only: one-time codes go to redirect URIs, so whoever
    sets these could take over the sessions of all who sign in.
    """
    if body.keys() - PLAIN:
        by.refuse_key(NO_SETTINGS)
    stored = tenants.get(account_id).settings
    if any(_value(body, name) != _value(stored, name) for name in body.keys() - PLAIN):
        by.require_recent_sign_in()
    address = body.get(senders.SETTING)
    if not address or address == stored.get(senders.SETTING):
        return tenants.change_own(account_id, body, by=by.user_id)
    if db.in_transaction():  # of a template or manifest, where no look-up may wait
        senders.require_proof(account_id, address)
        return tenants.change_own(account_id, body, by=by.user_id)
    domain_id, records = senders.prove(account_id, address)
    with db.transaction():
        senders.save(domains.get_for_update(account_id, domain_id), records)
        return tenants.change_own(account_id, body, by=by.user_id)


def _value(settings: Body, name: str) -> object:
    # Defaults of settings that have none are false, empty or null, which are the same.
    return settings.get(name, sign_in_settings.DEFAULTS.get(name)) or None
