"""A request that comes in slowly, or an answer that nobody takes, holds nobody up.

Behind nginx, as in production, however many there are; without it as many as there are threads.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from http.client import HTTPResponse
from pathlib import Path
from ssl import SSLContext, SSLSocket, create_default_context
from typing import Any

import pytest
from flask import Flask

from deploy.serving import THREADS
from tests import certificates, services
from tests.conftest import make_app, settings_for
from tests.project import PROGRAMS, PROJECT
from tests.system.goings_on import until
from tests.system.site import ROOT, Client, nginx_site
from tests.system.test_servers import (
    Server,
    children_of,
    it_does_what_it_is_there_for,
    serving,
    sockets_of,
)

HEAD = "POST /api/v1/auth/login HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
SLOW = {
    "head": "POST /api/v1/auth/login HTTP/1.1\r\nHost: a\r\nX-Slow: ",
    "body": f"{HEAD}Content-Length: 100000\r\n\r\n{{",
    "long body": f"{HEAD}Content-Length: 65536\r\n\r\n{{{' ' * 65_480}",
    "refused body": f"{HEAD}Content-Length: 100000\r\n\r\n{{{' ' * 80_000}",
    "chunks": f"{HEAD}Transfer-Encoding: chunked\r\n\r\n5\r\n{{",
    "expectation": f"{HEAD}Content-Length: 10\r\nExpect: 100-continue\r\n\r\n",
    "second request": f"GET /live HTTP/1.1\r\nHost: a\r\n\r\n{HEAD}Content-Length: 100\r\n\r\n{{",
    "nothing": "",
}
HASTY = """
import sys
sys.path.insert(0, {project!r})
__file__ = {conf!r}
from deploy import serving
serving.READ_SECONDS, serving.WRITE_SECONDS = 1, 1
exec(compile(open({conf!r}).read(), {conf!r}, "exec"))
"""
CONF = PROJECT / "deploy" / "gunicorn.conf.py"


@pytest.fixture(scope="module")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Flask:
    """An application whose database each server gets a copy of."""
    return make_app(settings_for("sqlite", tmp_path_factory.mktemp("migrated")))


@pytest.fixture(scope="module")
def server(migrated: Flask, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server as it is deployed, of one process: starting one takes longer than most tests."""
    with serving(migrated, tmp_path_factory.mktemp("server"), processes=1) as started:
        yield started


@dataclass
class Front:
    """nginx in front of a server."""

    server: Server
    port: int
    context: SSLContext

    def connect(self) -> SSLSocket:
        """Connect to nginx."""
        plain = socket.create_connection(("127.0.0.1", self.port), timeout=20)
        return self.context.wrap_socket(plain, server_hostname="127.0.0.1")


@pytest.fixture(scope="module")
def front(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    """The server behind nginx, as it is in production."""
    if not services.nginx():
        reason = "nginx missing: the deployment is NOT tested"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(f"{reason}; `python -m tests.services install system` installs it")
    folder = tmp_path_factory.mktemp("front")
    certificate = certificates.make(folder)
    with services.Nginx(nginx_site(certificate, server.port, folder)) as nginx:
        context = create_default_context(cafile=str(certificate))
        yield Front(server, int(nginx.url.rpartition(":")[2]), context)


@pytest.fixture(scope="module")
def hasty(migrated: Flask, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that waits for a second only."""
    folder = tmp_path_factory.mktemp("hasty")
    conf = folder / "gunicorn.conf.py"
    conf.write_text(HASTY.format(conf=str(CONF), project=str(PROJECT)))
    command = [str(PROGRAMS / "gunicorn"), "-c", str(conf), "--graceful-timeout=2", "wsgi:app"]
    with serving(migrated, folder, command, processes=1) as started:
        yield started


def connect(server: Server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=20)


def seconds_of_health(server: Server | Front) -> float:
    began = time.monotonic()
    connection = server.connect() if isinstance(server, Front) else connect(server)
    with connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        assert answer(connection)[0] == 200
    return time.monotonic() - began


def answer(connection: socket.socket) -> tuple[int, bytes]:
    with closing(HTTPResponse(connection)) as found:
        found.begin()
        return found.status, found.read()


def test_slow_requests_behind_nginx_hold_no_thread(front: Front) -> None:
    (worker,) = children_of(front.server.process.pid)
    with ExitStack() as held:
        for sent in SLOW.values():
            for _ in range(40):  # together twice as many as there are threads
                held.enter_context(front.connect()).sendall(sent.encode())
        time.sleep(0.3)
        slowest = max(seconds_of_health(front) for _ in range(4))
        # The listening one, and those that nginx keeps: of the answered and the refused.
        assert sockets_of(worker, front.server.port) < len(SLOW) * 40 // 4
    assert slowest < 3  # not the ten that a read may take


def test_slow_requests_without_nginx_leave_threads_to_others(server: Server) -> None:
    with ExitStack() as held:
        for sent in SLOW.values():
            for _ in range(THREADS // len(SLOW) - 1):
                held.enter_context(connect(server)).sendall(sent.encode())
        time.sleep(0.3)
        slowest = max(seconds_of_health(server) for _ in range(4))
    assert slowest < 3  # not the ten that a read may take


def test_slow_requests_without_nginx_do_not_close_the_door(hasty: Server) -> None:
    """Those that ended are waited for in threads, not by whoever takes connections."""
    with ExitStack() as held:
        for _ in range(THREADS // 2):
            held.enter_context(connect(hasty)).sendall(SLOW["head"].encode())
        time.sleep(1.3)  # by now, they are given up
        assert max(seconds_of_health(hasty) for _ in range(4)) < 1


def test_slow_request_bodies_leave_threads_to_others(server: Server) -> None:
    upload = b'{"name": "' + b"a" * 100_000 + b'"}'
    with closing(Client(f"http://127.0.0.1:{server.port}", Path(), "127.0.0.1")) as root:
        root.sign_in("system", ROOT)
        assert root("GET", "accounts").status_code == 200  # so the server knows the account
        with ExitStack() as held:
            for _ in range(20):
                held.enter_context(connect(server)).sendall(SLOW["long body"].encode())
            time.sleep(0.3)
            began = time.monotonic()
            headers = {"Content-Type": "application/json"}
            answer = root.post(f"{root.base}/api/v1/accounts", upload, headers=headers, timeout=30)
            assert answer.status_code == 422, answer.text
    assert time.monotonic() - began < 3  # not the ten that a read may take


@pytest.mark.timing
def test_slow_request_bodies_behind_nginx_do_not_delay_others(front: Front) -> None:
    with ExitStack() as held:
        for _ in range(800):
            held.enter_context(front.connect()).sendall(SLOW["long body"].encode())
        time.sleep(1)
        assert sum(seconds_of_health(front) for _ in range(20)) < 1


def all_at_once(check: Callable[[Any], None], cases: Sequence[Any]) -> None:
    """Check several slow clients together: each of them mostly waits."""
    with ThreadPoolExecutor(len(cases)) as pool:
        list(pool.map(check, cases))


def test_slow_request_is_closed_after_read_timeout(hasty: Server) -> None:
    def check(what: str) -> None:
        with connect(hasty) as slow:
            began = time.monotonic()
            slow.sendall(SLOW[what].encode())
            if what == "expectation":
                head = b""
                while not head.endswith(b"\r\n\r\n"):
                    head += slow.recv(1) or pytest.fail(str(head))  # the answer may follow at once
                assert head.startswith(b"HTTP/1.1 100")
            if what != "head":
                assert answer(slow)[0] == (413 if what == "body" else 400), what
            assert slow.recv(100) == b"", what
            assert time.monotonic() - began < 10, what

    all_at_once(check, ["head", "body", "long body", "chunks", "expectation"])
    assert '"level":"error"' not in hasty.log.read_text()


def test_slow_request_byte_by_byte_behind_nginx_does_not_reach_a_thread(front: Front) -> None:
    (worker,) = children_of(front.server.process.pid)
    until(lambda: sockets_of(worker, front.server.port) == 1)  # that which listens

    def check(what: str) -> None:
        with front.connect() as slow:
            slow.sendall(SLOW[what].encode())
            for _ in range(10):
                slow.sendall(b" ")
                time.sleep(0.2)
                assert sockets_of(worker, front.server.port) == 1, what

    all_at_once(check, ["head", "body", "long body"])


def in_chunks(body: bytes) -> bytes:
    pieces = [body[start : start + 10_000] for start in range(0, len(body), 10_000)]
    return b"".join(b"%X\r\n%b\r\n" % (len(piece), piece) for piece in [*pieces, b""])


def test_request_body_in_pieces_is_accepted(server: Server) -> None:
    def check(sent: tuple[int, bool]) -> None:
        length, chunked = sent
        body = b'{"account": "' + b"a" * length + b'"}'
        told = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {len(body)}"
        text = f"{HEAD}{told}\r\n\r\n".encode() + (in_chunks(body) if chunked else body)
        text += b"GET /live HTTP/1.1\r\nHost: a\r\n\r\n"
        with connect(server) as slow:
            for start in range(0, len(text), len(text) // 5):
                slow.sendall(text[start : start + len(text) // 5])
                time.sleep(0.1)
            answers = b""
            while b'"status":"ok"' not in answers:  # what came along is the next request
                some = slow.recv(4096)
                assert some, answers
                answers += some
        assert answers.startswith(b"HTTP/1.1 422"), sent

    all_at_once(check, [(20, False), (20, True), (65_500, False), (65_500, True)])


def test_response_without_reader_is_given_up(hasty: Server) -> None:
    before = len(hasty.log.read_text())
    with ExitStack() as held:
        for _ in range(6):  # more than there are threads
            deaf = held.enter_context(socket.socket())
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            deaf.connect(("127.0.0.1", hasty.port))
            deaf.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: a\r\n\r\n" * 20)
        time.sleep(0.5)
        assert seconds_of_health(hasty) < 10
        processes = children_of(hasty.process.pid)
        until(lambda: sum(sockets_of(one, hasty.port) for one in processes) <= len(processes))
    assert '"error"' not in hasty.log.read_text()[before:]


def test_slow_reader_receives_whole_export(server: Server) -> None:
    with closing(Client(f"http://127.0.0.1:{server.port}", Path(), "127.0.0.1")) as root:
        it_does_what_it_is_there_for(root)
        records = {"records": [{"title": str(number) * 2000} for number in range(100, 400)]}
        assert root("POST", "records/tasks/batch", records).status_code < 300
        whole = root("GET", "audit-logs/export?format=jsonl").content
        token = root.token
    head = f"Host: a\r\nAuthorization: Bearer {token}\r\n\r\n"
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.settimeout(20)
        slow.connect(("127.0.0.1", server.port))
        slow.sendall(f"GET /api/v1/audit-logs/export?format=jsonl HTTP/1.1\r\n{head}".encode())
        time.sleep(1)
        status, body = answer(slow)
    assert (status, body) == (200, whole)
    assert len(whole) > 1_000_000
