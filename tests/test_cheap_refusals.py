"""What costs an attacker nothing costs the service next to nothing: the largest body that a route
refuses, and the largest of everything else in a request."""

from __future__ import annotations

import io
import time
import tracemalloc
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
from flask import Flask
from werkzeug.test import TestResponse

from app.console.shell.guard import MAX_ANONYMOUS_BODY
from app.web.access import AccessLevel, access_of
from tests.builders import Caller, make_collection

SECONDS, BYTES = 0.05, 16 * 2**20
LARGEST = 10 * 2**20 - 100
ANONYMOUS_BYTES = 2**18
WRITING = {"POST", "PUT", "PATCH"}
SENT_PATHS = {"collection": "posts", "provider": "google", "provider_name": "google"}
UUID = "019a9f00-0000-7000-8000-000000000001"
Body = tuple[bytes, str]
JSON = "application/json"


@pytest.fixture
def stranger(app: Flask, root: Caller, alice: Caller) -> Caller:
    """Nobody, in an account whose posts are open to everybody."""
    fields = [{"name": "title", "type": "text"}, {"name": "data", "type": "json"}]
    open_to_all = dict.fromkeys(("list_rule", "view_rule", "create_rule", "update_rule"), "")
    make_collection(root, schema=fields, delete_rule="", **open_to_all)
    return Caller(app).acting_in("acme")


def reachable(app: Flask) -> Iterator[tuple[str, str, int]]:
    """Every route that reads a body of a stranger's: its method, a path, and its bound."""
    for rule in app.url_map.iter_rules():
        view = app.view_functions[rule.endpoint]
        access, of_console = access_of(view), rule.endpoint.startswith("console.")
        methods = (rule.methods or set()) & WRITING
        # One guard refuses all pages alike: one of them stands for all.
        is_page = access.level is AccessLevel.PAGE and rule.rule == "/console/profile"
        is_open = access.level in (AccessLevel.PUBLIC, AccessLevel.ANONYMOUS)
        if not methods or not (is_open or is_page):
            continue
        values = {
            name: SENT_PATHS.get(name) or (UUID if "Uuid" in type(kind).__name__ else "1")
            for name, kind in rule._converters.items()
        }
        built = rule.build(values)
        assert built is not None
        bound = ANONYMOUS_BYTES if access.level is AccessLevel.ANONYMOUS else access.max_body
        for method in sorted(methods):
            yield method, built[1], MAX_ANONYMOUS_BODY if of_console else bound


def filled(start: bytes, part: bytes, end: bytes, size: int) -> bytes:
    """As many parts as there is room for."""
    return start + part * ((size - len(start) - len(end)) // len(part)) + end


@cache
def values(size: int) -> list[Body]:
    """Bodies of a size with as many values as it holds."""
    return [
        (filled(b'{"account":[', b"{},", b"{}]}", size), JSON),
        (filled(b'{"title":[', b"1,", b"1]}", size), JSON),
    ]


@cache
def bodies(size: int) -> list[Body]:
    """The most laborious bodies of a size."""
    form = "application/x-www-form-urlencoded"
    keys = b",".join(b'"%x":0' % n for n in range(size // 10))[: size - 20].rpartition(b",")[0]
    return [
        *values(size),
        (filled(b'{"title":', b"[", b"", size), JSON),
        (filled(b'{"title":"', b'\\"', b"", size), JSON),
        (filled(b'{"title":', b"9", b"}", size), JSON),
        (b"{" + keys + b"}", JSON),
        (filled(b"", b"a=&", b"", size), form),
        (filled(b"", b"--x\r\n", b"--x--", size), "multipart/form-data; boundary=x"),
    ]


def seconds(call: Callable[[], Any]) -> float:
    """The time of this thread's processor that a call takes."""
    begun = time.thread_time()
    call()
    return time.thread_time() - begun


def is_cheap(call: Callable[[], Any], usual: float, times: int = 3) -> bool:
    """Whether a call takes little more than usual, at the best of three times."""
    return any(seconds(call) < usual + SECONDS for _ in range(times))


def sending(
    caller: Caller, method: str, path: str, body: Body, *, chunked: bool = False
) -> Callable[[], TestResponse]:
    def send() -> TestResponse:
        raw, kind = body
        about: dict[str, Any] = {"wsgi.input": io.BytesIO(raw), "CONTENT_TYPE": kind}
        if chunked:
            about |= {"wsgi.input_terminated": True, "HTTP_TRANSFER_ENCODING": "chunked"}
        about["CONTENT_LENGTH"] = "" if chunked else str(len(raw))
        return caller(method, path, environ_overrides=about)

    return send


@pytest.mark.timing
def test_refusal_of_largest_public_body_is_cheap(app: Flask, stranger: Caller) -> None:
    small = (b'{"account": 1, "title": 1}', JSON)
    routes = list(reachable(app))
    assert len(routes) > 25
    for method, path, bound in routes:
        usual = seconds(sending(stranger, method, path, small))
        for body in (*bodies(bound), *values(LARGEST)):
            send = sending(stranger, method, path, body)
            begun = time.thread_time()
            answer = send()
            spent = time.thread_time() - begun
            told = (method, path, body[0][:20], len(body[0]), answer.status_code)
            assert 400 <= answer.status_code < 500 or path.endswith("/auth/logout"), told
            assert len(answer.data) < 50_000, told
            assert spent < usual + SECONDS or is_cheap(send, usual, 2), told


def test_body_over_limit_is_413_with_or_without_length(app: Flask, stranger: Caller) -> None:
    for method, path, bound in reachable(app):
        if path.startswith("/console"):
            continue
        for chunked in (False, True):
            body = (b'{"a":"' + b"x" * bound + b'"}', JSON)
            answer = sending(stranger, method, path, body, chunked=chunked)()
            reads = answer.status_code == 413
            told = (method, path, chunked, answer.status_code, answer.text[:200])
            # Others refuse it before they would read it, or read none.
            assert reads or answer.status_code in (400, 401, 404, 415), told
            if reads and answer.is_json and "SAML" not in answer.text and "/saml/" not in path:
                assert f"{bound:,} bytes" in answer.json["message"], told


def test_refusal_of_body_takes_little_memory(app: Flask, stranger: Caller) -> None:
    for path in ("auth/login", "auth/refresh", "workflow-webhooks/none", "records/posts"):
        for body in (*values(ANONYMOUS_BYTES), *values(LARGEST)):
            send = sending(stranger, "POST", path, body)
            send()
            tracemalloc.start()
            try:
                send()
                _, peak = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert peak < BYTES, (path, body[0][:20], peak)


LARGE = "x" * 8000
HEADERS = [
    ("Authorization", f"Bearer {LARGE}"),
    ("Authorization", "Bearer " + "." * 8000),
    ("X-API-Key", f"svc_sk_{LARGE}"),
    ("X-Account-ID", LARGE),
    ("Cookie", "a=b; " * 1600),
    ("Cookie", 'a="' + "\\" * 8000),
    ("If-None-Match", '"a",' * 2000),
    ("If-None-Match", "W/" * 4000),
    ("If-Match", '"a",' * 2000),
    ("Accept", "text/html;q=0.1," * 500),
    ("Accept-Language", "de;q=0.1," * 800),
    ("Content-Type", "multipart/form-data;" + " a=b;" * 1500),
    ("Content-Type", "application/json;" + ' a*0="b' * 1000),
    ("Range", "bytes=" + "0-1," * 2000),
    ("Idempotency-Key", LARGE),
    ("X-Correlation-ID", LARGE),
    ("X-ES-Username", LARGE),
    ("Host", "a." * 4000),
    ("Origin", "https://" + "a." * 3900),
    ("Referer", "http://localhost/console/" + "../" * 2600),
    ("User-Agent", LARGE),
    ("X-Forwarded-For", "1," * 4000),
]


@pytest.mark.timing
def test_refusal_of_largest_header_is_cheap(app: Flask, stranger: Caller) -> None:
    for path in ("auth/login", "records/posts", "/console/sign-in", "/static/pages/pages.css"):
        method = "POST" if path == "auth/login" else "GET"
        usual = seconds(lambda: stranger(method, path).close())  # noqa: B023
        for name, value in HEADERS:
            key = name.upper().replace("-", "_")
            key = key if key == "CONTENT_TYPE" else f"HTTP_{key}"
            send = lambda: stranger(method, path, environ_overrides={key: value}).close()  # noqa: B023, E731
            assert is_cheap(send, usual), (path, name)


TEXTS = ["1" * 8000, "a-" * 4000, "a@" * 4000, "." * 8000, "(" * 8000, "%" * 8000, "\\" * 8000]


@pytest.mark.timing
def test_refusal_of_longest_expression_is_cheap(
    stranger: Caller,
) -> None:
    usual = seconds(lambda: stranger.get("records/posts"))
    for name in ("sort", "fields", "expand", "filter", "cursor", "limit", "title", "as_of"):
        for text in TEXTS:
            send = lambda: stranger.get("records/posts", query_string={name: text})  # noqa: B023, E731
            assert is_cheap(send, usual), (name, text[:2])
    login = {"account": "acme", "email": "a@acme.example", "password": "x"}
    usual = seconds(lambda: stranger.post("auth/login", login))
    for name in login:
        for text in TEXTS:
            send = lambda: stranger.post("auth/login", {**login, name: text * 7})  # noqa: B023, E731
            assert is_cheap(send, usual), (name, text[:2])
