"""A request that comes in slowly, or an answer that nobody takes, holds no thread for long."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from http.client import HTTPResponse
from pathlib import Path
from urllib.request import urlopen

import pytest
from flask import Flask

from tests.processes import PROGRAMS, PROJECT
from tests.test_servers import Server, serving

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
serving.READ_SECONDS, serving.REQUEST_SECONDS, serving.WRITE_SECONDS = 1, 3, 1
exec(compile(open({conf!r}).read(), {conf!r}, "exec"))
"""
CONF = PROJECT / "deploy" / "gunicorn.conf.py"


@pytest.fixture
def database() -> str:
    return "sqlite"


@contextmanager
def hasty(app: Flask, folder: Path) -> Iterator[Server]:
    """gunicorn that waits for a second only."""
    conf = folder / "gunicorn.conf.py"
    conf.write_text(HASTY.format(conf=str(CONF), project=str(PROJECT)))
    command = [str(PROGRAMS / "gunicorn"), "-c", str(conf), "--graceful-timeout=2", "wsgi:app"]
    with serving("gunicorn", app, folder, command) as server:
        yield server


def connect(server: Server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=20)


def seconds_of_health(server: Server) -> float:
    began = time.monotonic()
    urlopen(f"http://127.0.0.1:{server.port}/health", timeout=30).close()
    return time.monotonic() - began


def answer(connection: socket.socket) -> tuple[int, bytes]:
    with closing(HTTPResponse(connection)) as found:
        found.begin()
        return found.status, found.read()


def test_half_sent_requests_hold_no_thread_of_gunicorn(app: Flask, tmp_path: Path) -> None:
    with serving("gunicorn", app, tmp_path) as server:
        for name, sent in SLOW.items():
            with ExitStack() as held:
                for _ in range(20):
                    held.enter_context(connect(server)).sendall(sent.encode())
                time.sleep(0.3)
                slowest = max(seconds_of_health(server) for _ in range(4))
            assert slowest < 3, name  # not the ten that a read may take


@pytest.mark.parametrize("name", ["head", "body", "long body", "chunks", "expectation"])
def test_what_does_not_come_in_is_given_up(name: str, app: Flask, tmp_path: Path) -> None:
    with hasty(app, tmp_path) as server, connect(server) as slow:
        began = time.monotonic()
        slow.sendall(SLOW[name].encode())
        if name == "expectation":
            assert slow.recv(100).startswith(b"HTTP/1.1 100")
        status, body = answer(slow)
        assert status in (400, 408)
        assert status == 400 or b"3 s in all" in body
        assert time.monotonic() - began < 10


def test_a_request_that_comes_byte_by_byte_has_a_deadline(app: Flask, tmp_path: Path) -> None:
    with hasty(app, tmp_path) as server:
        for sent in (SLOW["head"], SLOW["body"], SLOW["long body"]):
            with connect(server) as slow:
                slow.sendall(sent.encode())
                began = time.monotonic()
                with suppress(ConnectionError):
                    while time.monotonic() - began < 12:
                        slow.sendall(b" ")
                        time.sleep(0.2)
                assert time.monotonic() - began < 10


def test_a_body_that_comes_in_pieces_is_taken(app: Flask, tmp_path: Path) -> None:
    with serving("gunicorn", app, tmp_path) as server:
        for length in (20, 65_500):
            body = b'{"account": "' + b"a" * length + b'"}'
            head = f"{HEAD}Content-Length: {len(body)}\r\n\r\n".encode()
            text = head + body + b"GET /live HTTP/1.1\r\nHost: a\r\n\r\n"
            with connect(server) as slow:
                for start in range(0, len(text), len(text) // 5):
                    slow.sendall(text[start : start + len(text) // 5])
                    time.sleep(0.1)
                answers = b""
                while b'"status":"ok"' not in answers:  # what came along is the next request
                    answers += slow.recv(4096)
                assert answers.startswith(b"HTTP/1.1 422")


def test_an_answer_that_nobody_takes_is_given_up(app: Flask, tmp_path: Path) -> None:
    with hasty(app, tmp_path) as server, ExitStack() as held:
        for _ in range(20):
            deaf = held.enter_context(socket.socket())
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            deaf.connect(("127.0.0.1", server.port))
            deaf.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: a\r\n\r\n" * 20)
        time.sleep(1)
        assert seconds_of_health(server) < 10
    assert '"error"' not in server.log.read_text()
