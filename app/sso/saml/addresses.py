"""Our addresses as a service provider, with the account; from settings only."""

from __future__ import annotations

from app import config
from app.sso.connections import Connection


def entity_id(connection: Connection) -> str:
    """Return our entity id."""
    return str(connection.config.get("sp_entity_id") or _ours(connection, ""))


def consumer_url(connection: Connection) -> str:
    """Return our assertion consumer URL."""
    return str(connection.config.get("assertion_consumer_url") or _ours(connection, "/acs"))


def _ours(connection: Connection, path: str) -> str:
    base, name = config.current().base_url, connection.provider.name
    return f"{base}/saml/{name}{path}?account={connection.account.slug}"
