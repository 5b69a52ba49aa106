"""What a stream was opened with identifies its caller as long as it is valid, and no longer."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import time_machine
from flask import Flask

from app import clock
from app.auth import stream_credentials, tokens
from app.auth.stream_credentials import StreamCredential
from app.console.shell.guard import cookie_name
from app.db import versioned_cache
from app.errors import Unauthorized
from app.realtime.connections import Connection
from tests.builders import PASSWORD, Caller, Cast, change_user
from tests.console.browser import sign_in, sign_out
from tests.realtime.clients import Events, until

Opened = Callable[[Caller], StreamCredential]


@pytest.fixture
def opened(port: int, attached: list[Connection]) -> Opened:
    """Opens a stream; returns its credential."""

    def open_stream(caller: Caller) -> StreamCredential:
        count = len(attached)
        assert Events(port, headers=caller.headers).status == 200
        until(lambda: len(attached) > count)
        return attached[-1].credential

    return open_stream


def is_valid(app: Flask, credential: StreamCredential) -> bool:
    """Whether a credential still identifies its caller, behind all caches."""
    with app.app_context(), versioned_cache.reloading():
        try:
            return credential.principal().user_id == credential.user_id
        except Unauthorized:
            return False


def sign_in_to_api(caller: Caller) -> tuple[Caller, dict[str, Any]]:
    """A caller with a session."""
    body = {"account": caller.slug, "email": caller.email, "password": PASSWORD}
    pair = Caller(caller.app).post("auth/login", body).json
    return Caller(caller.app, Authorization=f"Bearer {pair['token']}"), pair


def test_stream_credential_ends_with_token_expiry(app: Flask, bob: Caller, opened: Opened) -> None:
    credential = opened(bob)
    assert credential.expires_at
    with time_machine.travel(credential.expires_at - 5):
        assert is_valid(app, credential)
    with time_machine.travel(credential.expires_at + 1), app.app_context():
        with pytest.raises(Unauthorized) as refused:
            credential.principal()
        assert refused.value.error == "token_expired"


def test_stream_credential_ends_with_session(app: Flask, bob: Caller, opened: Opened) -> None:
    caller, pair = sign_in_to_api(bob)
    credential = opened(caller)
    assert is_valid(app, credential)
    refresh_token = {"refresh_token": pair["refresh_token"]}
    assert caller.post("auth/logout", refresh_token).status_code == 200
    assert not is_valid(app, credential)


def test_stream_credential_ends_with_revocation_of_all_tokens(
    app: Flask, bob: Caller, opened: Opened
) -> None:
    credential = opened(bob)
    change_user(app, bob.id, tokens_valid_from=clock.now() + timedelta(seconds=1))
    assert not is_valid(app, credential)


@pytest.mark.parametrize("keyed", [False, True])
def test_stream_credential_ends_with_user_deactivation(
    app: Flask, bob: Caller, opened: Opened, keyed: bool
) -> None:
    caller = bob
    if keyed:
        key = bob.post("api-keys", {"name": "nightly"}).json["key"]
        caller = Caller(app, **{"X-API-Key": key})
    credential = opened(caller)
    change_user(app, bob.id, is_active=False)
    assert not is_valid(app, credential)


def test_stream_credential_ends_with_api_key_revocation_or_expiry(
    app: Flask, bob: Caller, opened: Opened
) -> None:
    expiry = clock.now() + timedelta(hours=1)
    key = bob.post("api-keys", {"name": "nightly", "expires_at": clock.iso(expiry)}).json
    credential = opened(Caller(app, **{"X-API-Key": key["key"]}))
    assert credential.expires_at == pytest.approx(expiry.timestamp(), abs=0.001)
    with time_machine.travel(expiry + timedelta(seconds=1)):
        assert not is_valid(app, credential)
    assert is_valid(app, credential)
    assert bob.post(f"api-keys/{key['id']}/revoke").status_code == 200
    assert not is_valid(app, credential)


def test_stream_credential_of_superadmin_ends_with_acting_account(
    app: Flask, cast: Cast, opened: Opened
) -> None:
    credential = opened(cast.root.acting_in("acme"))
    with app.app_context():
        assert credential.principal().account_id == cast.alice.account_id
    path = f"accounts/{cast.alice.account_id}"
    assert cast.root.patch(path, {"is_active": False}).status_code == 200
    assert not is_valid(app, credential)


def test_stream_ticket_of_console_session(app: Flask, bob: Caller, port: int) -> None:
    client = app.test_client()
    sign_in(client, bob)

    def ticket() -> str:
        with app.test_request_context():
            cookie = client.get_cookie(cookie_name())
            found = tokens.console_principal(cookie.value if cookie else "")
            assert found
            return stream_credentials.issue_ticket(stream_credentials.of_session(found[0]))

    first, second = ticket(), ticket()
    assert Events(port, f"ticket={first}").status == 200
    sign_out(client)
    assert Events(port, f"ticket={second}").status == 401


def test_stream_credential_is_stored_as_json_without_secret(bob: Caller, opened: Opened) -> None:
    caller, pair = sign_in_to_api(bob)
    credential = opened(caller)
    stored = json.dumps(credential.as_json())
    assert StreamCredential(**json.loads(stored)) == credential
    assert pair["token"] not in stored
    assert pair["refresh_token"] not in stored
