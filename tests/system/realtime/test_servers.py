"""Streams of gunicorn as the Procfile starts it: its threads stay free, and it stops in order."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from flask import Flask

from app.auth.guard.fair_turns import PLACES
from tests.builders import Cast
from tests.project import procfile
from tests.realtime.clients import Events, Socket, Stream, until
from tests.system.site import ROOT, Client
from tests.system.test_servers import TOKEN, Server, children_of, serving

STREAMS = 50


@pytest.fixture
def server(app: Flask, cast: Cast, tmp_path: Path) -> Iterator[Server]:
    """One process of gunicorn, with the cast."""
    with serving(app, tmp_path, procfile()["web"].split(), processes=1) as found:
        yield found
        Stream.close_all()


def metrics(client: Client) -> dict[str, float]:
    """The samples of `/metrics` on streams."""
    answer = client("GET", "/metrics", None, Authorization=f"Bearer {TOKEN}")
    lines = [line.rpartition(" ") for line in answer.text.splitlines() if "_stream" in line]
    return {name: float(value) for name, _, value in lines if not name.startswith("#")}


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_open_streams_hold_no_thread_and_end_with_the_process(server: Server) -> None:
    with closing(Client(f"http://127.0.0.1:{server.port}", Path(), "127.0.0.1")) as client:
        client.sign_in("system", ROOT)
        bearer = {"Authorization": f"Bearer {client.token}"}
        tickets = [client("POST", "realtime/tickets").json()["ticket"] for _ in range(STREAMS)]
        events = [Events(server.port, f"ticket={ticket}") for ticket in tickets[::2]]
        talks = [Socket(server.port, headers=bearer) for _ in tickets[1::2]]
        assert {one.status for one in events} == {200}
        assert {one.ask({"action": "ping"})["type"] for one in talks} == {"pong"}

        began = time.monotonic()
        with ThreadPoolExecutor(PLACES * 2) as pool:
            answers = pool.map(lambda _: client("GET", "auth/me").status_code, range(40))
            assert set(answers) == {200}
        assert time.monotonic() - began < 5

        counts = metrics(client)
        assert counts['atrium_streams_open{protocol="sse"}'] == len(events)
        assert counts['atrium_streams_open{protocol="websocket"}'] == len(talks)
        assert counts['atrium_stream_messages_total{protocol="websocket"}'] == len(talks)

        server.process.terminate()
        assert {one.ended() for one in events} == {b""}
        assert {one.closed() for one in talks} == {1001}
        Stream.close_all()
        assert server.process.wait(10) == 0
        text = server.log.read_text()
        assert [one for one in (client.token, *tickets) if one in text] == []
        assert '"level":"error"' not in text


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_open_stream_metrics_exclude_killed_process(server: Server) -> None:
    with closing(Client(f"http://127.0.0.1:{server.port}", Path(), "127.0.0.1")) as client:
        client.sign_in("system", ROOT)
        talk = Socket(server.port, f"token={client.token}")
        assert talk.status == 101
        (child,) = (
            Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children")
            .read_text()
            .split()
        )
        assert metrics(client)['atrium_streams_open{protocol="websocket"}'] == 1
        client.close()
        for child in children_of(server.process.pid):
            os.kill(int(child), signal.SIGKILL)
        with pytest.raises((ConnectionResetError, AssertionError)):
            talk.next()
        until(lambda: not metrics(client).get('atrium_streams_open{protocol="websocket"}'))
