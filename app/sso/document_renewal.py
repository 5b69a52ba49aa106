"""Renews stored documents of issuers outside of sign-ins."""

from __future__ import annotations

from contextlib import suppress

from app import jobs
from app.errors import NotFound
from app.sso import service
from app.sso.models import OAUTH
from app.sso.oauth import discovery
from app.sso.oauth.documents import RENEW
from app.sso.oauth.exchange import Unreachable
from app.types import JSONMapping


@jobs.job(RENEW)
def renew(payload: JSONMapping) -> None:
    """Read what a provider publishes; a failure is stored, and the former documents stay."""
    from app.sso.oauth import id_tokens  # imported on use: large

    account = service.find_active_account(payload["account_id"])
    with suppress(NotFound, Unreachable):
        connection = service.connection(account, OAUTH, payload["provider"])
        current = discovery.resolve(connection, fresh=True)
        if current.provider.openid:
            id_tokens.renew_keys(current)
