"""Web servers are killed while they work: the meter says what their log says."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import requests
from flask import Flask

from app import db
from app.auth.guard.fair_turns import PLACES
from tests.builders import Cast, make_collection, make_record
from tests.conftest import WHOLE
from tests.processes import Process, environment, wait_for
from tests.project import PROGRAMS, free_port
from tests.system.goings_on import until
from tests.usage.test_meters import stored, used

COMMAND = [str(PROGRAMS / "gunicorn"), "-c", "deploy/gunicorn.conf.py", "wsgi:app"]
SENDERS, KILLS, WEB_PROCESSES = 4, 3, 2
WAIT_SECONDS = 5


class Senders:
    """Threads that send mixed calls, and go on when a server is killed."""

    def __init__(self, url: str, headers: dict[str, str], record: str, count: int) -> None:
        self._url, self._headers, self._record = url, headers, record
        self._numbers, self.answered, self.sent = iter(range(count)), list[int](), 0
        self.has_server = threading.Event()
        self.has_server.set()
        self._threads = [threading.Thread(target=self._send_all) for _ in range(SENDERS)]
        for thread in self._threads:
            thread.start()

    def _send_all(self) -> None:
        for number in self._numbers:
            method, path, body = self._call(number)
            url, headers = f"{self._url}/api/v1/{path}", self._headers
            self.sent = number
            self.has_server.wait()
            try:
                answer = requests.request(
                    method, url, json=body, headers=headers, timeout=WAIT_SECONDS
                )
            except requests.RequestException:
                time.sleep(0.01)  # the server was killed
            else:
                self.answered.append(answer.status_code)

    def _call(self, number: int) -> tuple[str, str, Any]:
        record = f"records/posts/{self._record}"
        calls = (
            ("GET", record, None),
            ("POST", "records/posts", {"title": f"{number}"}),
            ("PATCH", record, {"title": "x" * (number % 99)}),
            ("GET", "records/posts?limit=3", None),
            ("GET", "records/none", None),
        )
        return calls[number % len(calls)]

    def join(self) -> None:
        """Wait for the end."""
        for thread in self._threads:
            thread.join()


def logged(log: Path) -> int:
    """How many requests of the API the log has."""
    lines = (line for line in log.read_text().splitlines() if line.startswith("{"))
    entries = (json.loads(line) for line in lines if line.endswith("}"))
    routes = (entry.get("route") or "" for entry in entries if entry.get("event") == "request")
    return sum(route.startswith("/api/v1/records") for route in routes)


@WHOLE
def test_usage_meter_of_killed_web_servers_loses_no_request(
    app: Flask, cast: Cast, tmp_path: Path, whole: bool
) -> None:
    make_collection(cast.root)
    record = make_record(cast.alice, title="x")["id"]
    before, count, port = used(cast.alice)["requests"], 10_000 if whole else 400, free_port()
    with app.app_context():
        url = db.db.engine.url.render_as_string(hide_password=False)
        db.db.engine.dispose()
    folder = app.extensions["atrium.config"].instance_dir
    addresses = {"PORT": str(port), "SERVICE_DATABASE_URL": url, "WEB_CONCURRENCY": "2"}
    addresses["SERVICE_BASE_URL"] = app.extensions["atrium.config"].base_url
    env = environment(tmp_path, SERVICE_ENV="test", **addresses)
    env["SERVICE_INSTANCE_DIR"] = str(folder)
    site, log = f"http://127.0.0.1:{port}", tmp_path / "log"
    server = Process(COMMAND, env, log)
    try:
        wait_for(f"{site}/live", log)
        senders = Senders(site, cast.alice.headers, record, count)
        for kill in range(1, KILLS + 1):
            until(lambda kill=kill: senders.sent >= count * kill // (KILLS + 1))
            server.kill()
            senders.has_server.clear()
            server.start()
            wait_for(f"{site}/live", log)
            senders.has_server.set()
        senders.join()
    finally:
        server.kill()
    now = used(cast.alice)
    metered, lines = now["requests"] - before - 1, logged(log)
    assert count // 2 < len(senders.answered) <= lines <= count
    # A request may be killed between its count and its line in the log.
    assert lines <= metered <= lines + KILLS * WEB_PROCESSES * PLACES
    assert stored(app, cast.alice).items() <= now.items()
