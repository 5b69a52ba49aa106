"""A server of the application under test, within the process of the test."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from flask import Flask
from werkzeug.serving import make_server

from app.realtime import connections, hub
from app.realtime.connections import Connection
from tests.realtime.clients import Stream, until


@contextmanager
def serving(app: Flask, host: str = "127.0.0.1", **options: Any) -> Iterator[int]:
    """A server that hands its sockets over; its port."""
    server = make_server(host, 0, app, threaded=True, **options)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server.server_port
    finally:
        Stream.close_all()
        server.shutdown()
        thread.join()
        server.server_close()
    until(lambda: not connections.registry.all())


@pytest.fixture
def port(app: Flask) -> Iterator[int]:
    """The port of a server of the application."""
    with serving(app) as found:
        yield found


@pytest.fixture
def attached(monkeypatch: pytest.MonkeyPatch) -> list[Connection]:
    """The streams that join the hub."""
    found, attach = list[Connection](), hub.attach

    def note(connection: Connection) -> None:
        attach(connection)
        found.append(connection)

    monkeypatch.setattr(hub, "attach", note)
    return found
