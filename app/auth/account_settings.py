"""An account's settings, as its admins change them: most decide who signs in, and from where."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.accounts import tenants
from app.accounts.models import Account
from app.auth.principal import Principal

NO_SETTINGS = "An API key cannot change how people sign in, nor where browsers are sent."


def change(account_id: str, body: Mapping[str, Any], *, by: Principal) -> Account:
    """Change an account's name and settings. Raises InvalidValues, or Forbidden.

    A one-time code goes to a redirect address, and is worth a session of whoever signs in: with
    those, a key would become a person.
    """
    if body.keys() - {"name"}:
        by.refuse_key(NO_SETTINGS)
    present = tenants.get(account_id).settings
    if any((body[name] or None) != (present.get(name) or None) for name in body.keys() - {"name"}):
        by.require_recent_sign_in()
    return tenants.change_own(account_id, body, by=by.user_id)
