"""Our redirect addresses at OAuth providers, from settings only.

All settings have their own, so a code that arrives at the address of other settings is refused
before it is sent anywhere (mix-up attacks: RFC 9700, section 4.4).
"""

from __future__ import annotations

from app import config, db
from app.accounts.models import Account
from app.sso import providers
from app.sso.connections import Connection
from app.sso.models import OAUTH, ProviderSetting


def callback_url(connection: Connection) -> str:
    """Return the redirect address of a connection."""
    own = "" if connection.shares_callback else f"/{connection.row_account_code}"
    return f"{config.current().base_url}{callback_path(connection.provider.name)}{own}"


def callback_url_for_row(row: ProviderSetting) -> str | None:
    """Return the redirect address to register at the provider; None for SAML."""
    if row.category != OAUTH:
        return None
    account = db.db.session.get_one(Account, row.account_id)
    provider = providers.of_settings(row.category, row.provider_name, row.kind)
    shared = row.shared_callback
    return callback_url(Connection(account, provider, row.config, True, shared_callback=shared))


def callback_path(provider: str) -> str:
    """Return the path of a provider's redirect addresses, which older settings share."""
    return f"/oauth/{provider}/callback"
