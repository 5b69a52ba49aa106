"""One account's load does not take all threads of a process while others have requests."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from io import BytesIO
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from flask import Flask
from werkzeug.test import EnvironBuilder, run_wsgi_app
from werkzeug.wsgi import ClosingIterator

from app.auth.guard import fair_turns
from app.auth.guard.authorize import ACCOUNT
from app.auth.guard.fair_turns import Callers, FairShare, Turns
from app.console.shell.guard import SETUP_COOKIE, cookie_name
from bench import fair_share
from tests.builders import Caller, Cast, make_collection, make_drawer
from tests.realtime.clients import until

SECONDS = 20


class Request(NamedTuple):
    """A request that lasts until it is let go."""

    caller: str
    released: threading.Event


class Clock:
    """The time that turns know of, which stands still until a test moves it."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        """The seconds until now."""
        return self.seconds


class Desk:
    """Places, and the order in which they were taken."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.turns = clock, Turns(4)
        self.served = list[str]()
        self.under_way = list[tuple[Request, Future[bool]]]()
        self._threads = ThreadPoolExecutor(2 * fair_turns.MAX_WAITING)

    def send(self, caller: str) -> threading.Event:
        """Send a request; returns what lets it go."""
        request = Request(caller, threading.Event())
        self.under_way.append((request, self._threads.submit(self._serve, request)))
        until(lambda: len(self.served) + self._waiting() == len(self.under_way))
        return request.released

    def _waiting(self) -> int:
        return sum(map(len, list(self.turns._waiting.values())))

    def _serve(self, request: Request) -> bool:
        if not self.turns.take(request.caller):
            return False
        self.served.append(request.caller)
        assert request.released.wait(SECONDS)
        self.turns.leave(request.caller)
        return True

    def wait(self, count: int) -> None:
        """Wait until so many requests have begun."""
        until(lambda: len(self.served) >= count)
        time.sleep(0.05)  # nobody else begins
        assert len(self.served) == count, self.served

    def close(self) -> None:
        """Let all go."""
        for request, _ in self.under_way:
            request.released.set()
        for _, future in self.under_way:
            future.result(SECONDS)
        self._threads.shutdown()


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    clock = Clock()
    monkeypatch.setattr(fair_turns, "time", clock)
    made = Desk(clock)
    yield made
    made.close()


def test_fair_turns_gives_all_threads_to_lone_account(desk: Desk) -> None:
    for _ in range(6):
        desk.send("noisy")
    desk.wait(4)


def test_fair_turns_keeps_half_of_threads_free_beside_others(desk: Desk) -> None:
    desk.send("quiet").set()
    for _ in range(6):
        desk.send("noisy")
    desk.wait(1 + 2)
    desk.send("quiet")
    desk.wait(1 + 2 + 1)


def test_fair_turns_keeps_one_thread_for_account_without_any(desk: Desk) -> None:
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


def test_fair_turns_lone_account_leaves_a_thread_to_next(desk: Desk) -> None:
    for _ in range(6):
        desk.send("noisy")
    desk.wait(4)
    desk.clock.seconds += fair_turns.RECENT_SECONDS
    desk.send("quiet")
    desk.wait(4 + 1)
    assert desk.served[4] == "quiet"


def test_fair_turns_serves_accounts_in_turn(desk: Desk) -> None:
    first = [desk.send("noisy") for _ in range(4)]
    desk.wait(4)
    for _ in range(5):
        desk.send("noisy")
    desk.send("quiet")
    for released in first:
        released.set()
    desk.wait(4 + 2 + 1)
    assert "quiet" in desk.served[4:7]  # and not behind the five


def test_fair_turns_gives_all_threads_back_one_second_after_others(desk: Desk) -> None:
    desk.send("quiet").set()
    sent = [desk.send("noisy") for _ in range(6)]
    desk.wait(1 + 2)
    desk.clock.seconds += fair_turns.RECENT_SECONDS
    sent[0].set()
    desk.wait(1 + 2 + 3)  # four run
    sent[1].set()
    desk.wait(1 + 2 + 3 + 1)


def test_fair_turns_gives_all_threads_to_waiting_requests_one_second_after_others(
    desk: Desk,
) -> None:
    """Also while none of those that run ends."""
    desk.send("quiet").set()
    for _ in range(6):
        desk.send("noisy")
    desk.wait(1 + 2)
    desk.clock.seconds += fair_turns.RECENT_SECONDS
    desk.wait(1 + 4)


def test_fair_turns_queue_limit_applies_beside_others_only(desk: Desk) -> None:
    for _ in range(4 + fair_turns.MAX_WAITING):
        desk.send("noisy")
    desk.wait(4)
    desk.send("noisy")
    _, allowed = desk.under_way[-1]
    assert not allowed.done()
    desk.send("quiet")
    desk.wait(4 + 1)
    assert desk.turns.take("noisy") is False


def test_fair_turns_place_of_failed_request_is_free_again() -> None:
    """Whether the application fails, or what it answers while it is sent, or at its end."""

    def application(environ: dict[str, Any], start_response: Any) -> Any:
        if environ["PATH_INFO"] == "/fails":
            raise ZeroDivisionError
        start_response("200 OK", [])
        if environ["PATH_INFO"] == "/ends-badly":
            return ClosingIterator([b"a"], lambda: 1 // 0)
        return iter([b"a", b"b"])

    share = FairShare(SimpleNamespace(wsgi_app=application))  # type: ignore[arg-type]
    for _ in range(2 * fair_turns.PLACES):
        with pytest.raises(ZeroDivisionError):
            run_wsgi_app(share, {"PATH_INFO": "/fails"})
        answer, _, _ = run_wsgi_app(share, {"PATH_INFO": "/"})
        answer.close()  # type: ignore[attr-defined]
        answer, _, _ = run_wsgi_app(share, {"PATH_INFO": "/ends-badly"})
        with pytest.raises(ZeroDivisionError):
            answer.close()  # type: ignore[attr-defined]
    answers = [run_wsgi_app(share, {"PATH_INFO": "/"})[0] for _ in range(fair_turns.PLACES)]
    assert [b"".join(one) for one in answers] == [b"ab"] * fair_turns.PLACES


@pytest.mark.parametrize("path", ["/live", "/live/", "/ready", "/metrics", "/health"])
def test_fair_turns_one_probe_runs_beside_places_that_hang(path: str) -> None:
    """And no more than one, or strangers had as many places as they like."""
    arrived, ended = threading.Semaphore(0), threading.Event()

    def application(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        start_response("200 OK", [])
        arrived.release()
        assert environ.get("HTTP_X_API_KEY") is None or ended.wait(SECONDS)
        return [b"here"]

    share = FairShare(SimpleNamespace(wsgi_app=application))  # type: ignore[arg-type]
    hanging = [{"PATH_INFO": "/", "HTTP_X_API_KEY": one} for one in ("a", "a", "b", "b", "c")]
    for sent in hanging:
        share._callers.learn(sent["HTTP_X_API_KEY"], sent["HTTP_X_API_KEY"])
    hanging += [{"PATH_INFO": path, "HTTP_X_API_KEY": "d"} for _ in range(2)]
    with ThreadPoolExecutor(len(hanging)) as threads:
        for sent in hanging[:-2]:
            threads.submit(run_wsgi_app, share, sent)
            assert arrived.acquire(timeout=SECONDS)
        assert run_wsgi_app(share, {"PATH_INFO": path})[1] == "200 OK"
        assert arrived.acquire(timeout=SECONDS)
        for sent in hanging[-2:]:
            threads.submit(run_wsgi_app, share, sent)
        assert arrived.acquire(timeout=SECONDS)
        assert not arrived.acquire(timeout=0.2)
        ended.set()


class Readers:
    """Clients of long answers, which the threads of a server send them."""

    LENGTH = 2_000_000

    def __init__(self) -> None:
        self._share = FairShare(SimpleNamespace(wsgi_app=self._application))  # type: ignore[arg-type]
        self._threads, self._opened = ThreadPoolExecutor(30), ExitStack()

    def _application(self, environ: dict[str, Any], start_response: Any) -> Any:
        start_response("200 OK", [])
        return iter([b"a" * self.LENGTH, b"", b"b"]) if environ["PATH_INFO"] == "/long" else []

    def open(self, account: str, seconds: int = SECONDS) -> tuple[socket.socket, Future[None]]:
        """Ask for a long answer, which nobody reads yet; returns the client, and what sends it."""
        client, server = (self._opened.enter_context(one) for one in socket.socketpair())
        client.settimeout(SECONDS)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", seconds, 0))
        return client, self._threads.submit(self._send, server, account)

    def _send(self, server: socket.socket, account: str) -> None:
        environ = {"PATH_INFO": "/long", "gunicorn.socket": server, "HTTP_X_API_KEY": account}
        self._share._callers.learn(account, account)
        answer: Any = self._share(environ, lambda *_: None)
        with server, closing(answer):
            for piece in answer:
                server.sendall(piece)

    def serve_another(self) -> None:
        """Have a request of somebody else served."""
        self._threads.submit(run_wsgi_app, self._share, {"PATH_INFO": "/"}).result(SECONDS)

    def close(self) -> None:
        """Let all go."""
        self._opened.close()
        self._threads.shutdown()


@pytest.fixture
def readers() -> Iterator[Readers]:
    made = Readers()
    yield made
    made.close()


def test_fair_turns_waits_for_slow_readers_without_a_place(readers: Readers) -> None:
    slow = [readers.open(account) for account in ("a", "a", "b", "b", "c")]
    for _ in range(3):
        time.sleep(0.1)
        readers.serve_another()
    for client, sent in slow:
        with client.makefile("rb") as answer:
            assert answer.read() == b"a" * readers.LENGTH + b"b"
        sent.result(SECONDS)


def test_fair_turns_readers_beyond_few_end_once_others_wait(readers: Readers) -> None:
    """Each may hold a connection to the database: those who read nothing do not take all."""
    slow = [readers.open(account) for account in "abcdefg" for _ in range(3)]
    time.sleep(0.1)
    assert not any(sent.done() for _, sent in slow[: fair_turns.READERS])
    readers.serve_another()
    ended = [sent for _, sent in slow if sent.done()]
    assert ended
    for sent in ended:
        with pytest.raises(BlockingIOError):
            sent.result(SECONDS)


def test_fair_turns_reader_of_nothing_is_given_up(readers: Readers) -> None:
    _, sent = readers.open("a", 1)
    with pytest.raises(BlockingIOError):
        sent.result(SECONDS)
    readers.serve_another()


def test_fair_turns_refusal_has_error_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Turns, "take", lambda self, account: False)
    share = FairShare(SimpleNamespace(wsgi_app=None))  # type: ignore[arg-type]
    body, status, headers = run_wsgi_app(share, {"PATH_INFO": "/"})
    assert status == "429 Too Many Requests"
    assert (headers["Retry-After"], headers["Content-Type"]) == ("1", "application/json")
    assert headers["X-Correlation-ID"]
    refused = json.loads(b"".join(body))
    assert (refused["error"], refused["quota"]) == ("quota_exceeded", "concurrent_requests")
    assert refused["limit"] == fair_turns.MAX_WAITING


@pytest.mark.parametrize("sent", [b"ab", OSError()])
def test_fair_turns_short_body_is_received_before_a_place_is_taken(sent: Any) -> None:
    """And what does not arrive in time is missing, and not waited for again."""
    told = list[Any]()

    class Body:
        def read(self, size: int) -> bytes:
            told.append(size)
            if isinstance(sent, OSError):
                raise sent
            return bytes(sent)

    def application(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        start_response("200 OK", [])
        told.append(environ["wsgi.input"].read())
        return []

    share = FairShare(SimpleNamespace(wsgi_app=application))  # type: ignore[arg-type]
    run_wsgi_app(share, {"PATH_INFO": "/", "CONTENT_LENGTH": "2", "wsgi.input": Body()})
    assert told == [2, b"" if isinstance(sent, OSError) else b"ab"]


def test_fair_turns_knows_only_credentials_that_were_checked(app: Flask) -> None:
    """Who makes up credentials has one turn for all of them."""
    callers = Callers(app)
    assert callers.of("made up") is None
    callers.learn("Bearer x", "acme")
    assert callers.of("Bearer x") == "acme"
    for n in range(Callers.MOST):
        callers.learn(str(n), "acme")
    assert callers.of("Bearer x") is None


def test_fair_turns_forgets_credentials_that_are_no_longer_valid(app: Flask, cast: Cast) -> None:
    """Whoever had one would use up the turns of the account that took it from them."""
    share = FairShare(app)
    made = cast.alice.post("api-keys", {"name": "import"}).json

    def account_after_request() -> str | None:
        sent = EnvironBuilder("/api/v1/api-keys", headers={"X-API-Key": made["key"]})
        run_wsgi_app(share, sent.get_environ(), buffered=True)
        return share._callers.of(made["key"])

    assert account_after_request() == cast.alice.account_id
    assert cast.alice.post(f"api-keys/{made['id']}/revoke").status_code == 200
    account_after_request()  # what was remembered of the key is outdated
    assert account_after_request() is None


@pytest.mark.timing
def test_fair_turns_noisy_account_adds_under_200_ms_to_quiet_p95() -> None:
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


def test_fair_turns_account_is_taken_from_signed_in_callers_only(
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


def test_fair_turns_ignores_cookie_beside_token_in_query(
    app: Flask, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    captured = Captured(app, monkeypatch)
    make_drawer(cast.root)
    file = cast.alice.post("files/upload", data={"file": (BytesIO(b"x"), "x.txt")}).json["file"]
    token = cast.alice.headers["Authorization"].removeprefix("Bearer ")
    path = f"files/{file['id']}?token={token}"
    assert Caller(app).get(path, headers={"Cookie": "theme=dark"}).status_code == 200
    assert captured.account_id is None


def test_fair_turns_credential_is_remembered_once(app: Flask) -> None:
    """However it is spelled, and whatever cookies stand beside it: who varies one fills nothing."""

    def application(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        start_response("200 OK", [])
        environ[ACCOUNT] = "acme"
        return []

    share = FairShare(SimpleNamespace(wsgi_app=application))  # type: ignore[arg-type]
    sent = [{"HTTP_AUTHORIZATION": f"{scheme}{' ' * 20} x "} for scheme in ("Bearer", "bEARER")]
    sent += [{"HTTP_X_API_KEY": "x", "HTTP_COOKIE": f"a={n}"} for n in range(2)]
    with app.app_context():
        names = [cookie_name(), cookie_name(SETUP_COOKIE), f"__Host-{cookie_name()}"]
    for name in names:
        sent += [{"HTTP_COOKIE": f"a={n}; {name}=AA0001-x; b={n}"} for n in range(2)]
    sent += [{"HTTP_COOKIE": f"{names[0]}=AA0001-x", "HTTP_AUTHORIZATION": "Basic x"}]
    sent += [{"HTTP_COOKIE": f"theme=dark; not_{names[0]}=x"}]
    for headers in sent:
        run_wsgi_app(share, {"PATH_INFO": "/", **headers})
    assert len(share._callers._accounts) == 5


def test_fair_turns_takes_portals_by_their_own_cookie_alone() -> None:
    both = {"HTTP_COOKIE": "__Host-atrium_console=AA0001-x; atrium_portal=AA0002-y"}
    taken = {
        path: fair_turns._credential({"PATH_INFO": path, **both})
        for path in ("/portal/1/team", "/console", "/portals")
    }
    assert taken == {
        "/portal/1/team": "atrium_portal=AA0002-y",
        "/console": "__Host-atrium_console=AA0001-x",
        "/portals": "__Host-atrium_console=AA0001-x",
    }


def test_fair_turns_memory_for_long_credentials_is_bounded(app: Flask) -> None:
    callers = Callers(app)
    tracemalloc.start()
    for n in range(2000):
        callers.learn(f"Bearer {n}" + " " * 8000, "acme")
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert taken < 2**20
    callers.learn("", "acme")
    assert callers.of("") is None


def test_fair_turns_knows_account_of_access_token_at_first_request(app: Flask, cast: Cast) -> None:
    callers = Callers(app)
    bearer = cast.alice.headers["Authorization"]
    payload, signature = bearer.rpartition(".")[::2]
    forged = f"{payload}.{signature[::-1]}"
    found = [callers.of(one) for one in (bearer, forged, "Bearer a.b.c", "Basic a.b.c")]
    assert found == [cast.alice.account_id, None, None, None]
