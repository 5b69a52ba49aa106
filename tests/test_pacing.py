"""Requests of a process on SQLite: one after another, as long as none takes long."""

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from flask import Flask

from app.web import concurrency
from tests.parallel import at_once

SHORT, WAITING = 0.002, 20


def _asked(application: Any, path: str = "") -> Iterable[bytes]:
    found: Iterable[bytes] = application({"PATH_INFO": path}, None)
    return found


@contextmanager
def _slow(application: Any, path: str) -> Iterator[None]:
    """Inside, a request is under way that takes long."""
    begun, ended = threading.Event(), threading.Event()
    given = {"PATH_INFO": path, "begun": begun, "ended": ended}
    other = threading.Thread(target=application, args=(given, None))
    other.start()
    try:
        assert begun.wait(WAITING)
        time.sleep(concurrency.LONG_SECONDS)
        yield
    finally:
        ended.set()
        other.join()


def _served(environ: Any, start_response: Any) -> list[bytes]:
    if environ["PATH_INFO"] == "/fails":
        raise LookupError
    if environ["PATH_INFO"] == "/slow":
        environ["begun"].set()
        assert environ["ended"].wait(WAITING)
    return [environ["PATH_INFO"].encode()]


def test_sqlite_short_requests_run_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(concurrency, "LONG_SECONDS", WAITING)
    under_way, seen = 0, list[int]()

    def count(environ: Any, start_response: Any) -> list[bytes]:
        nonlocal under_way
        under_way += 1
        time.sleep(SHORT)  # lets the others go on, as a statement does
        seen.append(under_way)
        under_way -= 1
        return []

    application = concurrency.SerialMiddleware(count)
    at_once(4, lambda number: [_asked(application) for _ in range(10)])
    assert seen == [1] * 40


@pytest.mark.timing
def test_sqlite_long_request_does_not_block_others() -> None:
    application = concurrency.SerialMiddleware(_served)
    with _slow(application, "/slow"):
        begun = time.monotonic()
        answers = at_once(3, lambda number: _asked(application, f"/{number}"))
        assert time.monotonic() - begun < WAITING / 2
    assert answers == [[b"/0"], [b"/1"], [b"/2"]]


@pytest.mark.timing
@pytest.mark.parametrize("before", ["/fails", "/slow"])
def test_sqlite_request_turn_is_returned_after_failure_or_long_request(
    before: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    application = concurrency.SerialMiddleware(_served)
    if before == "/fails":
        with pytest.raises(LookupError):
            _asked(application, before)
    else:
        with _slow(application, before):
            _asked(application)
    monkeypatch.setattr(concurrency, "LONG_SECONDS", 2 * WAITING)
    begun = time.monotonic()
    _asked(application)
    assert time.monotonic() - begun < WAITING


def test_request_serialization_is_for_sqlite_only(app: Flask, database: str) -> None:
    before = app.wsgi_app
    concurrency.init_app(app)
    assert (app.wsgi_app != before) == (database == "sqlite")
    assert app.test_client().get("/health").status_code == 200
