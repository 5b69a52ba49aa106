"""Tests provider settings without signing in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import sqlalchemy as sa

from app import clock, db
from app.accounts.models import Account
from app.auth.principal import Principal
from app.errors import InvalidValues
from app.outbound import web_waits
from app.sso import connections, service, validation
from app.sso.connections import Connection
from app.sso.models import OAUTH, ProviderSetting
from app.sso.oauth import discovery, exchange
from app.sso.refusals import SignInRefused
from app.sso.saml import certificates
from app.types import JSONMapping

# Errors for an invalid code, which providers return once they have accepted the client.
INVALID_CODE_ERRORS = ("invalid_grant", "bad_verification_code", "invalid_request")


@dataclass(frozen=True)
class Step:
    """The result of one check."""

    check: str
    ok: bool
    message: str


def run(body: JSONMapping, *, by: Principal) -> list[Step]:
    """Test settings; stored secrets replace missing ones. Raises InvalidValues."""
    account_id = service.resolve_account(body.get("account_id"), by)
    provider = service.requested_provider(body)
    saved = db.db.session.scalar(
        sa.select(ProviderSetting).where(
            ProviderSetting.account_id == account_id,
            ProviderSetting.category == provider.category,
            ProviderSetting.provider_name == provider.name,
        )
    )
    merged = service.merge_config(saved, body["config"]) if saved else body["config"]
    config, problems = validation.validate(provider, merged, saved.config if saved else {})
    if problems:
        raise InvalidValues(problems)
    account = db.db.session.get_one(Account, account_id)
    shared = saved is not None and saved.shared_callback
    connection = Connection(account, provider, config, is_own=True, shared_callback=shared)
    db.db.session.remove()  # hold no connection during requests
    with web_waits.place_or_429(account_id):
        if provider.category != OAUTH:
            by_url = config.get("metadata_url")
            steps = [_try_step("metadata", _metadata, connection)] if by_url else []
            steps.append(_try_step("certificates", _certificates, connection))
            return [*steps, _try_step("sign-in address", _answers, connection)]
        steps = []
        if provider.discovers:
            try:
                connection = discovery.resolve(connection, fresh=True)
            except SignInRefused as error:
                return [Step("discovery", False, error.detail)]
            steps.append(Step("discovery", True, "The issuer publishes its addresses."))
        if provider.openid:
            steps.append(_try_step("key set", _keys, connection))
        return [*steps, _try_step("client", _client, connection)]


def run_stored(setting_id: str, *, by: Principal) -> list[Step]:
    """Test stored settings. Raises NotFound."""
    row = service.get(setting_id, by=by)
    kind = service.get_provider(row).kind
    named = {"category": row.category, "provider_name": kind, "slug": row.provider_name}
    return run({**named, "config": {}, "account_id": row.account_id}, by=by)


def _keys(connection: Connection) -> str:
    from app.sso.oauth import id_tokens  # imported on use: large

    key_set = exchange.json_object(exchange.Session().get(connection.address("jwks_url")))
    count = len(id_tokens.key_set(key_set).keys)
    return "1 usable key." if count == 1 else f"{count} usable keys."


def _client(connection: Connection) -> str:
    from app.sso.oauth import sign_in

    form = {
        "grant_type": "authorization_code",
        "code": "atrium-tries-the-client",
        "code_verifier": "atrium-tries-the-client-and-nothing-more-than-it",
        "redirect_uri": connections.callback_url(connection),
    }
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    auth = sign_in.client_auth(connection)
    answer = exchange.Session().post(connection.address("token_url"), form, headers, auth)
    body = answer.json()
    error = body.get("error") if isinstance(body, dict) else None
    if error not in INVALID_CODE_ERRORS:
        raise exchange.Unreachable(f"The provider returned the error {str(error)[:100]}")
    return "The provider accepts the client's credentials."


def _metadata(connection: Connection) -> str:
    from app.sso.saml import metadata  # imported on use: large

    config = connection.config
    rules = validation.request_rules()
    try:
        metadata.fetch(config["metadata_url"], rules, config.get("idp_entity_id"))
    except metadata.InvalidMetadata as error:
        raise exchange.Unreachable(str(error)) from None
    return "The metadata can be read."


def _certificates(connection: Connection) -> str:
    expiry_dates = [
        certificates.expires_at(certificate) for certificate in connection.config["idp_x509_cert"]
    ]
    if max(expiry_dates) <= clock.now():
        expired = ", ".join(map(certificates.describe, connection.config["idp_x509_cert"]))
        raise exchange.Unreachable(f"Expired: {expired}.")
    return f"Valid until {max(expiry_dates):%Y-%m-%d}."


def _answers(connection: Connection) -> str:
    answer = exchange.Session().get(connection.config["idp_sso_url"])
    if answer.status_code >= 500:
        raise exchange.Unreachable(f"The provider answered {answer.status_code}.")
    return "The provider answers."


def _try_step(check: str, act: Callable[[Connection], str], connection: Connection) -> Step:
    try:
        return Step(check, True, act(connection))
    except SignInRefused as error:
        return Step(check, False, error.detail)
