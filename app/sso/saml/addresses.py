"""Our addresses as a service provider: they carry the account, and come from settings only."""

from __future__ import annotations

from app import config
from app.sso.connections import Connection


def entity_id(connection: Connection) -> str:
    """Who we are to the identity provider."""
    return str(connection.config.get("sp_entity_id") or _ours(connection, ""))


def consumer_url(connection: Connection) -> str:
    """Where the identity provider posts its responses to."""
    return str(connection.config.get("assertion_consumer_url") or _ours(connection, "/acs"))


def _ours(connection: Connection, path: str) -> str:
    base, name = config.current().base_url, connection.provider.name
    return f"{base}/saml/{name}{path}?account={connection.account.slug}"
