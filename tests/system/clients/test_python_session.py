"""Sign-in by the Python client: tokens are renewed once, by one call at a time."""

from __future__ import annotations

import asyncio
import stat
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests import builders
from tests.auth.test_second_factors import set_up
from tests.builders import PASSWORD, Caller, Cast
from tests.system.clients.running import run_async
from tests.system.clients.stub import Answer, Stub

pytestmark = pytest.mark.usefixtures("tasks")
ALICE = ("acme", "alice@acme.example", PASSWORD)
# Known to be expired, or refused by the server.
WORN_OUT = {"expired": {"expires_at": 0}, "refused": {"access_token": "worn-out"}}


def sessions(cast: Cast) -> int:
    return len(cast.alice.get("auth/sessions").json["items"])


def test_python_client_session_from_sign_in_to_sign_out(
    atrium: ModuleType, address: str, cast: Cast
) -> None:
    with atrium.Client(address) as client:
        with pytest.raises(atrium.Unauthorized):
            client.records("tasks").list()
        assert client.sign_in(*ALICE)["email"] == "alice@acme.example"
        assert client.is_signed_in
        assert client.records("tasks").list().total == 0
        former = client.session.tokens
        client.sign_out()
        assert not client.is_signed_in
        client.session.store(former)
        with pytest.raises(atrium.Unauthorized):
            client.records("tasks").list()
        assert not client.is_signed_in


def test_python_client_wrong_password_is_error(
    atrium: ModuleType, address: str, cast: Cast
) -> None:
    with atrium.Client(address) as client:
        with pytest.raises(atrium.Unauthorized) as error:
            client.sign_in("acme", "alice@acme.example", "wrong")
        assert error.value.code == "authentication_failed"
        client.sign_in(*ALICE)
        before = client.session.tokens
        with pytest.raises(atrium.AtriumError):
            client.session.json("POST", "auth/reauthenticate", json={"password": "wrong"})
        assert client.session.tokens == before  # which no refresh would help


def test_python_client_second_factor_completes_sign_in(
    atrium: ModuleType, address: str, cast: Cast
) -> None:
    user = builders.make_user(cast.alice.app, cast.alice.account_id, "factor@acme.example")
    phone = set_up(Caller(cast.alice.app, user))
    with atrium.Client(address) as client:
        with pytest.raises(atrium.Unauthorized) as refused:
            client.sign_in("acme", user.email, PASSWORD)
        assert refused.value.code == "mfa_required"
        signed_in = client.verify_second_factor(refused.value.body["mfa_token"], phone.code(1))
        assert signed_in["email"] == user.email
        assert client.is_signed_in


@pytest.mark.parametrize("worn_out", WORN_OUT.values(), ids=WORN_OUT)
def test_python_client_threads_renew_token_once(
    atrium: ModuleType, address: str, cast: Cast, worn_out: dict[str, Any]
) -> None:
    with atrium.Client(address) as client:
        client.sign_in(*ALICE)
        client.session.store(replace(client.session.tokens, **worn_out))
        with ThreadPoolExecutor(8) as pool:
            lists = [pool.submit(client.records("tasks").list) for _ in range(16)]
        assert [found.result().total for found in lists] == [0] * 16
        assert client.records("tasks").list().total == 0  # a second use would have ended it


@pytest.mark.parametrize("worn_out", WORN_OUT.values(), ids=WORN_OUT)
def test_python_async_client_tasks_renew_token_once(
    atrium: ModuleType, address: str, cast: Cast, worn_out: dict[str, Any]
) -> None:
    async def use() -> None:
        async with atrium.AsyncClient(address) as client:
            await client.sign_in(*ALICE)
            client.session.store(replace(client.session.tokens, **worn_out))
            lists = [client.records("tasks").list() for _ in range(16)]
            assert [found.total for found in await asyncio.gather(*lists)] == [0] * 16
            assert (await client.records("tasks").list()).total == 0
            await client.sign_out()

    run_async(use())


def test_python_async_client_cancelled_call_keeps_renewed_tokens(atrium: ModuleType) -> None:
    renewed = {"access_token": "new", "refresh_token": "next", "expires_in": 3600}

    async def use(stub: Stub) -> None:
        async with atrium.AsyncClient(stub.url) as client:
            client.session.store(atrium.Tokens("old", "single-use", 0))
            reading = asyncio.create_task(client.records("tasks").get("1"))
            while not stub.requests:
                await asyncio.sleep(0.001)
            reading.cancel()
            await client.records("tasks").get("1")

    with Stub(Answer(body=renewed, delay=0.2), Answer(body={"id": "1"})).serving() as stub:
        run_async(use(stub))
    assert [request.path.rpartition("/")[2] for request in stub.requests] == ["refresh", "1"]
    assert stub.requests[1].headers["Authorization"] == "Bearer new"


def test_python_client_session_file_survives_restart(
    atrium: ModuleType, address: str, cast: Cast, tmp_path: Path
) -> None:
    path = tmp_path / "session.json"
    with atrium.Client(address, storage=atrium.FileStorage(path)) as client:
        client.sign_in(*ALICE)
        client.session.store(replace(client.session.tokens, expires_at=0))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with atrium.Client(address, storage=atrium.FileStorage(path)) as client:
        assert client.records("tasks").list().total == 0
        client.sign_out()
    assert not path.exists()


def test_python_client_takes_over_tokens_renewed_by_other_client(
    atrium: ModuleType, address: str, cast: Cast, tmp_path: Path
) -> None:
    storage = atrium.FileStorage(tmp_path / "session.json")
    with atrium.Client(address, storage=storage) as one:
        one.sign_in(*ALICE)
        one.session.store(replace(one.session.tokens, access_token="worn-out"))
        with atrium.Client(address, storage=storage) as two:
            for client in (one, two, one):
                assert client.records("tasks").list().total == 0


def test_python_client_refresh_is_never_repeated(atrium: ModuleType) -> None:
    tokens = atrium.Tokens("old", "single-use", 0)
    with Stub(Answer(cut=True)).serving() as stub, atrium.Client(stub.url) as client:
        client.session.store(tokens)
        with pytest.raises(atrium.NetworkError):
            client.records("tasks").list()
    assert [request.path for request in stub.requests] == ["/api/v1/auth/refresh"]


def test_python_client_acting_account(atrium: ModuleType, address: str, cast: Cast) -> None:
    with atrium.Client(address, account="acme") as client:
        client.sign_in("system", "root@system.example", PASSWORD)
        made = client.records("tasks").create({"title": "x"})
    assert made["account_id"] == cast.alice.account_id
