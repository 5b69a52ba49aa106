"""Our redirect addresses at OAuth providers, from settings only.

Each row of settings has its own, so that a code names the row that it was issued for: a code that
comes back to another row's address is refused before it is sent anywhere (RFC 9700, section 4.4).
"""

from __future__ import annotations

from app import config, db
from app.accounts.models import Account
from app.sso import service
from app.sso.connections import Connection
from app.sso.models import OAUTH, ProviderSetting


def callback_url(connection: Connection) -> str:
    """Where a provider sends browsers back to, and what its token endpoint is told."""
    own = "" if connection.shares_callback else f"/{connection.row_account_code}"
    return f"{config.current().base_url}{callback_path(connection.provider.name)}{own}"


def callback_url_of(row: ProviderSetting) -> str | None:
    """The redirect address to enter at the provider of these settings; None for SAML."""
    if row.category != OAUTH:
        return None
    account = db.db.session.get_one(Account, row.account_id)
    provider = service.provider_of(row)
    shared = row.shared_callback
    return callback_url(Connection(account, provider, row.config, True, shared_callback=shared))


def callback_path(provider: str) -> str:
    """The path of a provider's addresses; alone, the address that older rows share."""
    return f"/oauth/{provider}/callback"
