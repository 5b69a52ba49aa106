"""Trying a provider's settings before anybody depends on them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from app import clock, db
from app.accounts.models import Account
from app.auth.principal import Principal
from app.errors import InvalidValues, TooManyRequests
from app.sso import providers, service, validation
from app.sso.connections import Connection
from app.sso.models import OAUTH, ProviderSetting
from app.sso.oauth import addresses, exchange
from app.sso.refusals import SignInRefused
from app.sso.saml import certificates
from app.types import JSONMapping

AT_ONCE, WAIT_SECONDS = 2, 5
# What providers say of a code that is none, once they have taken the client for what it is.
ABOUT_THE_CODE = ("invalid_grant", "bad_verification_code", "invalid_request")
_trials = threading.BoundedSemaphore(AT_ONCE)


@dataclass(frozen=True)
class Step:
    """One thing that was tried."""

    check: str
    ok: bool
    message: str


def run(body: JSONMapping, *, by: Principal) -> list[Step]:
    """Try settings; a secret left out is the one that is kept. Raises InvalidValues."""
    by.refuse_key(service.NO_KEYS)
    account_id = service.resolve_account(body.get("account_id"), by)
    provider = providers.get(body["category"], body["provider_name"])
    kept = db.db.session.scalar(
        sa.select(ProviderSetting).where(
            ProviderSetting.account_id == account_id,
            ProviderSetting.category == provider.category,
            ProviderSetting.provider_name == provider.name,
        )
    )
    given = service.merge_config(kept, body["config"]) if kept else body["config"]
    config, found = validation.validate(provider, given, kept.config if kept else {})
    if found:
        raise InvalidValues(found)
    account = db.db.session.get_one(Account, account_id)
    shared = kept is not None and kept.shared_callback
    connection = Connection(account, provider, config, is_own=True, shared_callback=shared)
    db.db.session.remove()  # no connection is held while others think
    with _one_of_few():
        return _of_oauth(connection) if provider.category == OAUTH else _of_saml(connection)


def run_stored(setting_id: str, *, by: Principal) -> list[Step]:
    """Try settings as they are kept. Raises NotFound."""
    row = service.get(setting_id, by=by)
    named = {"category": row.category, "provider_name": row.provider_name}
    return run({**named, "config": {}, "account_id": row.account_id}, by=by)


@contextmanager
def _one_of_few() -> Iterator[None]:
    # Providers that hang must not take all of a web process's threads.
    if not _trials.acquire(timeout=WAIT_SECONDS):
        raise TooManyRequests(validation.TIMEOUT_SECONDS)
    try:
        yield
    finally:
        _trials.release()


def _of_oauth(connection: Connection) -> list[Step]:
    steps = [_tried("key set", _keys, connection)] if connection.provider.openid else []
    return [*steps, _tried("client", _client, connection)]


def _keys(connection: Connection) -> str:
    from app.sso.oauth import id_tokens  # large: where it is used only

    found = exchange.json_object(exchange.Session().get(connection.address("jwks_url")))
    return f"{len(id_tokens.key_set(found).keys)} of its keys can be used."


def _client(connection: Connection) -> str:
    from app.sso.oauth import sign_in

    form = {
        "grant_type": "authorization_code",
        "code": "atrium-tries-the-client",
        "code_verifier": "atrium-tries-the-client-and-nothing-more-than-it",
        "redirect_uri": addresses.callback_url(connection),
        "client_id": connection.config["client_id"],
        "client_secret": sign_in.client_secret(connection),
    }
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    answer = exchange.Session().post(connection.address("token_url"), form, headers)
    found = answer.json()
    error = found.get("error") if isinstance(found, dict) else None
    if error not in ABOUT_THE_CODE:
        raise exchange.Unreachable(f"The provider says: {str(error)[:100]}")
    return "The provider takes the client's credentials."


def _of_saml(connection: Connection) -> list[Step]:
    return [
        _tried("certificates", _certificates, connection),
        _tried("sign-in address", _answers, connection),
    ]


def _certificates(connection: Connection) -> str:
    ends = [certificates.expires_at(one) for one in connection.config["idp_x509_cert"]]
    if max(ends) <= clock.now():
        expired = ", ".join(map(certificates.describe, connection.config["idp_x509_cert"]))
        raise exchange.Unreachable(f"Expired: {expired}.")
    return f"Good until {max(ends):%Y-%m-%d}."


def _answers(connection: Connection) -> str:
    answer = exchange.Session().get(connection.config["idp_sso_url"])
    if answer.status_code >= 500:
        raise exchange.Unreachable(f"It answered {answer.status_code}.")
    return "It answers."


def _tried(check: str, act: Any, connection: Connection) -> Step:
    try:
        return Step(check, True, act(connection))
    except SignInRefused as error:
        return Step(check, False, error.detail)
