"""Which requests the Python client repeats, against a server that fails as it is told."""

from __future__ import annotations

import time
from io import BytesIO
from types import ModuleType
from typing import Any

import pytest

from tests.system.clients.running import run_async
from tests.system.clients.stub import Answer, Stub, served

FAILED = {"error": "unavailable", "message": "Try again later."}
UNAVAILABLE = Answer(503, FAILED)
BUSY = Answer(429, {"error": "rate_limited", "message": "Wait."}, {"Retry-After": "0"})
CUT = Answer(cut=True)
RUNNING = Answer(409, {"error": "in_progress", "message": "It is running."})
DONE = Answer(200, {"id": "1"})


def requests(client: Any) -> dict[str, Any]:
    tasks = client.records("tasks")
    return {
        "get": lambda: tasks.get("1"),
        "put": lambda: tasks.replace("1", {}),
        "delete": lambda: tasks.delete("1"),
        "post": lambda: tasks.create({}),
        "patch": lambda: tasks.update("1", {}),
        "upload": lambda: client.files.upload(b"x"),
        "sign in": lambda: client.sign_in("acme", "a@acme.example", "x"),
    }


@pytest.mark.parametrize(
    ("name", "answer", "times"),
    [
        ("get", UNAVAILABLE, 2),
        ("get", Answer(502, "<html>"), 2),
        ("get", Answer(504, ""), 2),
        ("get", CUT, 2),
        ("get", BUSY, 2),
        ("put", CUT, 2),
        ("delete", UNAVAILABLE, 2),
        ("post", UNAVAILABLE, 2),
        ("post", CUT, 2),
        ("post", BUSY, 2),
        # It may have been processed, and would be again.
        ("patch", CUT, 1),
        ("patch", UNAVAILABLE, 1),
        ("upload", CUT, 1),
        ("sign in", CUT, 1),
        # It was not processed.
        ("patch", BUSY, 2),
        # Repeating does not help.
        ("get", Answer(500, {"error": "internal_error"}), 1),
        ("get", Answer(404, {"error": "not_found"}), 1),
        ("post", RUNNING, 1),
    ],
)
def test_python_client_retries_only_repeatable_requests(
    atrium: ModuleType, name: str, answer: Answer, times: int
) -> None:
    with served(atrium, answer, DONE) as (stub, client):
        if times > 1:
            requests(client)[name]()
        else:
            with pytest.raises(atrium.AtriumError):
                requests(client)[name]()
    assert len(stub.requests) == times


def test_python_client_retries_post_with_same_idempotency_key(atrium: ModuleType) -> None:
    answers = Answer(201, cut=True), RUNNING, DONE
    with served(atrium, *answers) as (stub, client):
        for _ in range(2):
            client.records("tasks").create({"title": "x"})
    keys = [request.headers["Idempotency-Key"] for request in stub.requests]
    assert len(keys) == 4
    assert len(set(keys[:3])) == 1
    assert keys[3] != keys[0]
    assert len({request.body for request in stub.requests}) == 1


def test_python_client_retries_end_after_maximum_attempts(atrium: ModuleType) -> None:
    failing = served(atrium, UNAVAILABLE, attempts=3)
    with failing as (stub, client), pytest.raises(atrium.ServerError) as error:
        client.records("tasks").get("1")
    assert len(stub.requests) == 3
    assert (error.value.status, error.value.code) == (503, "unavailable")


def test_python_client_retries_respect_retry_after(atrium: ModuleType) -> None:
    soon, late = (Answer(429, FAILED, {"Retry-After": seconds}) for seconds in ("1", "900"))
    with served(atrium, soon, DONE) as (_, client):
        began = time.monotonic()
        client.records("tasks").get("1")
        assert time.monotonic() - began >= 1
    with served(atrium, late) as (stub, client), pytest.raises(atrium.RateLimited) as error:
        client.records("tasks").get("1")
    assert error.value.retry_after == 900
    assert len(stub.requests) == 1


def test_python_client_unreachable_server_is_network_error(atrium: ModuleType) -> None:
    with served(atrium, DONE) as (stub, _):
        pass
    retries = atrium.Retries(first_delay=0.01)
    client = atrium.Client(stub.url, retries=retries)
    with client, pytest.raises(atrium.NetworkError) as error:
        client.records("tasks").update("1", {})
    assert error.value.status is None


def test_python_client_silent_server_is_network_error(atrium: ModuleType) -> None:
    silent = served(atrium, Answer(cut=True, pause=1), attempts=1)
    with silent as (_, client), pytest.raises(atrium.NetworkError):
        client.records("tasks").get("1")


def test_python_client_html_error_of_proxy_is_forbidden(atrium: ModuleType) -> None:
    proxy = served(atrium, Answer(403, "<html>no</html>"))
    with proxy as (_, client), pytest.raises(atrium.Forbidden, match="HTTP 403"):
        client.records("tasks").get("1")


def test_python_client_unexpected_redirect_is_error(atrium: ModuleType) -> None:
    moved = served(atrium, Answer(301, "", {"Location": "https://atrium.example"}))
    with moved as (_, client), pytest.raises(atrium.AtriumError) as error:
        client.records("tasks").get("1")
    assert error.value.status == 301


def test_python_client_retry_delay_is_bounded(atrium: ModuleType) -> None:
    assert 2.5 <= atrium.Retries(max_delay=5).backoff(100_000) <= 5


def test_python_client_redirect_to_other_origin_omits_credential(atrium: ModuleType) -> None:
    with served(atrium, Answer(body="bytes")) as (bucket, _):
        redirect = Answer(302, "", {"Location": f"{bucket.url}/file"})
        with served(atrium, redirect) as (stub, client):
            client.files.download("1", found := BytesIO())
    assert found.getvalue() == b"bytes"
    assert stub.requests[0].headers["Authorization"] == "Bearer x"
    assert "Authorization" not in bucket.requests[0].headers


def test_python_async_client_retries(atrium: ModuleType) -> None:
    async def use(url: str) -> Any:
        retries = atrium.Retries(first_delay=0.01)
        async with atrium.AsyncClient(url, api_key="x", retries=retries) as client:
            return await client.records("tasks").get("1")

    with Stub(UNAVAILABLE, CUT, DONE).serving() as stub:
        assert run_async(use(stub.url)) == {"id": "1"}
    assert len(stub.requests) == 3
