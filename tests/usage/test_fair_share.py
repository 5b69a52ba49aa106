"""One account's load does not take all threads of a process while others have requests."""

from __future__ import annotations

import threading
import time
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from io import BytesIO
from typing import Any, NamedTuple

import pytest
from flask import Flask

from bench import fair_share
from deploy import fair_pool, intake
from deploy.fair_pool import Callers, FairPool
from tests.builders import Caller, Cast, make_collection, make_drawer

ACCOUNT = "atrium.account_id"

SECONDS = 20


class Request(NamedTuple):
    """A request that lasts until it is let go."""

    caller: str
    released: threading.Event


class Desk:
    """A pool, and the order in which it served."""

    def __init__(self, threads: int = 4) -> None:
        self.pool = FairPool(threads, lambda request: request.caller)
        self.served = list[str]()
        self.under_way = list[tuple[Request, Future[object]]]()

    def send(self, caller: str) -> threading.Event:
        """Send a request; returns what lets it go."""
        request = Request(caller, threading.Event())
        self.under_way.append((request, self.pool.submit(self._serve, request)))
        return request.released

    def _serve(self, request: Request) -> None:
        self.served.append(request.caller)
        assert request.released.wait(SECONDS)

    def wait(self, count: int) -> None:
        """Wait until so many requests have begun."""
        end = time.monotonic() + SECONDS
        while len(self.served) < count:
            assert time.monotonic() < end, self.served
            time.sleep(0.005)
        time.sleep(0.05)
        assert len(self.served) == count, self.served

    def close(self) -> None:
        """Let all go."""
        for request, _ in self.under_way:
            request.released.set()
        for _, future in self.under_way:
            future.result(SECONDS)
        self.pool.shutdown()


@pytest.fixture
def desk() -> Iterator[Desk]:
    made = Desk()
    yield made
    made.close()


def test_thread_pool_gives_all_threads_to_lone_account(desk: Desk) -> None:
    for _ in range(6):
        desk.send("noisy")
    desk.wait(4)


def test_thread_pool_keeps_half_of_threads_free_beside_others(desk: Desk) -> None:
    desk.send("quiet").set()
    for _ in range(6):
        desk.send("noisy")
    desk.wait(1 + 2)
    desk.send("quiet")
    desk.wait(1 + 2 + 1)


def test_thread_pool_keeps_one_thread_for_account_without_any(desk: Desk) -> None:
    for caller in ("noisy", "loud", "noisy", "loud", "noisy", "loud"):
        desk.send(caller)
    desk.wait(4)
    quiet = desk.send("quiet")
    desk.wait(4 + 1)
    desk.send("quiet")  # has one: waits as they do
    desk.wait(4 + 1)
    quiet.set()
    desk.wait(4 + 1 + 1)
    assert desk.served[4:] == ["quiet", "quiet"]


def test_thread_pool_lone_account_leaves_a_thread_to_next(desk: Desk) -> None:
    for _ in range(6):
        desk.send("noisy")
    desk.wait(4)
    time.sleep(fair_pool.RECENT_SECONDS)
    desk.send("quiet")
    desk.wait(4 + 1)
    assert desk.served[4] == "quiet"


def test_thread_pool_serves_accounts_in_turn(desk: Desk) -> None:
    first = [desk.send("noisy") for _ in range(4)]
    desk.wait(4)
    for _ in range(5):
        desk.send("noisy")
    desk.send("quiet")
    for released in first:
        released.set()
    desk.wait(4 + 2 + 1)
    assert "quiet" in desk.served[4:7]  # and not behind the five


def test_thread_pool_gives_all_threads_back_one_second_after_others(desk: Desk) -> None:
    desk.send("quiet").set()
    sent = [desk.send("noisy") for _ in range(6)]
    desk.wait(1 + 2)
    time.sleep(fair_pool.RECENT_SECONDS)
    sent[0].set()
    desk.wait(1 + 2 + 2)  # two in place of one
    sent[1].set()
    desk.wait(1 + 2 + 2 + 2)


def test_thread_pool_queue_limit_applies_beside_others_only(desk: Desk) -> None:
    for _ in range(4 + fair_pool.MAX_WAITING):
        desk.send("noisy")
    desk.wait(4)
    noisy = Request("noisy", threading.Event())
    assert not desk.pool.is_full(noisy)
    desk.send("quiet")
    assert desk.pool.is_full(noisy)
    assert not desk.pool.is_full(Request("quiet", threading.Event()))


def test_thread_pool_result_raises_error_of_request(desk: Desk) -> None:
    future = desk.pool.submit(lambda request: 1 // 0, Request("a", threading.Event()))
    assert isinstance(future.exception(SECONDS), ZeroDivisionError)
    assert desk.pool.submit(lambda request: 7, Request("a", threading.Event())).result(SECONDS) == 7


def test_thread_pool_knows_only_credentials_that_were_checked() -> None:
    """Who makes up credentials has one turn for all of them."""
    callers = Callers()
    assert callers.of(b"made up") is None
    callers.learn(b"Bearer x", "acme")
    assert callers.of(b"Bearer x") == "acme"
    for n in range(Callers.MOST):
        callers.learn(str(n).encode(), "acme")
    assert callers.of(b"Bearer x") is None


@pytest.mark.timing
def test_thread_pool_noisy_account_adds_under_200_ms_to_quiet_p95() -> None:
    """At ten times as many connections as there are threads (docs/usage.md)."""
    found = fair_share.run(2, 80)
    alone, beside = (min(times.p95 for times in found[start::2]) for start in (0, 1))
    assert beside < alone + 200


class Captured:
    """What the application says of whom each request is from, as the server sees it."""

    def __init__(self, app: Flask, monkeypatch: pytest.MonkeyPatch) -> None:
        self.account_id: str | None = None
        inner = app.wsgi_app

        def capture(environ: dict[str, Any], start_response: Any) -> Any:
            answer = inner(environ, start_response)
            self.account_id = environ.get(ACCOUNT)
            return answer

        monkeypatch.setattr(app, "wsgi_app", capture)


def test_thread_pool_account_is_taken_from_signed_in_callers_only(
    app: Flask, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or strangers, who can name any account, would use them up under a cookie of their own."""
    make_collection(cast.root, list_rule="")
    captured, named = Captured(app, monkeypatch), {"X-Account-ID": "acme"}
    for headers in (named, {**named, "Cookie": "a=b"}):
        assert Caller(app).get("records/posts", headers=headers).status_code == 200
        assert captured.account_id is None
    assert cast.alice.get("records/posts", headers={"Cookie": "a=b"}).status_code == 200
    assert captured.account_id == cast.alice.account_id


def test_thread_pool_ignores_cookie_beside_token_in_query(
    app: Flask, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    captured = Captured(app, monkeypatch)
    make_drawer(cast.root)
    file = cast.alice.post("files/upload", data={"file": (BytesIO(b"x"), "x.txt")}).json["file"]
    token = cast.alice.headers["Authorization"].removeprefix("Bearer ")
    path = f"files/{file['id']}?token={token}"
    assert Caller(app).get(path, headers={"Cookie": "theme=dark"}).status_code == 200
    assert captured.account_id is None


def test_thread_pool_memory_for_long_credentials_is_bounded() -> None:
    callers = Callers()
    tracemalloc.start()
    for n in range(2000):
        callers.learn(b"Bearer %d" % n + b" " * 8000, "acme")
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert taken < 2**20
    callers.learn(b"", "acme")
    assert callers.of(b"") is None


def test_thread_pool_knows_account_of_access_token_at_first_request(app: Flask, cast: Cast) -> None:
    callers = Callers()
    callers.account_of_token = partial(intake._account_of_token, app)
    bearer = cast.alice.headers["Authorization"]
    payload, signature = bearer.rpartition(".")[::2]
    forged = f"{payload}.{signature[::-1]}"
    found = [callers.of(one.encode()) for one in (bearer, forged, "Bearer a.b.c", "Basic a.b.c")]
    assert found == [cast.alice.account_id, None, None, None]
