"""Our address for OAuth providers, from settings only."""

from __future__ import annotations

from app import config
from app.sso.service import Connection


def callback_url(connection: Connection) -> str:
    """Where a provider sends browsers back to."""
    return f"{config.current().base_url}/oauth/{connection.provider.name}/callback"
