"""Several machines by one command (`deploy/cluster.py`): no confirmed write is lost, whatever is
killed, restarted or failed over under load.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import requests

from deploy import cluster
from deploy.cluster import Cluster
from tests import services
from tests.project import free_port

pytestmark = pytest.mark.skipif(
    not ((services.pgbouncer() and services.nginx()) or os.environ.get("CI")),
    reason="nginx or PgBouncer is not installed",
)
WRITERS = 6
SCHEMA = [{"name": "title", "type": "text"}, {"name": "step", "type": "number"}]


class Site:
    """A cluster as its callers see it."""

    def __init__(self, running: Cluster) -> None:
        self.cluster = running
        password = running.env["SERVICE_SUPERADMIN_PASSWORD"]
        body = {"account": "system", "email": "root@example.org", "password": password}
        self.token = self.call("POST", "auth/login", body).json()["token"]
        rules = dict.fromkeys(("list_rule", "view_rule", "create_rule", "update_rule"), "")
        made = self.call("POST", "collections", {"name": "tasks", "schema": SCHEMA, **rules})
        assert made.status_code == 201, made.text

    token = ""

    def call(
        self, method: str, path: str, body: object = None, session: requests.Session | None = None
    ) -> requests.Response:
        """Send a request through nginx."""
        return (session or requests).request(
            method,
            f"{self.cluster.url}/api/v1/{path}",
            json=body,
            headers={"Authorization": f"Bearer {self.token}"} if self.token else {},
            verify=str(self.cluster.certificate),
            timeout=60,
        )

    def all(self) -> dict[str, int]:
        """The steps of all records by id."""
        found: dict[str, int] = {}
        cursor = ""
        while True:
            page = self.call("GET", f"records/tasks?limit=100&sort=id&cursor={cursor}").json()
            found |= {item["id"]: item["step"] for item in page["items"]}
            if not page["has_more"]:
                return found
            cursor = page["next_cursor"]

    def until_ready(self) -> None:
        """Wait until it works again."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with suppress(requests.RequestException):  # nginx itself may be down
                if self.call("GET", "../../ready").status_code == 200:
                    return
            time.sleep(0.1)
        raise AssertionError("it does not recover")


class Load:
    """Writers and readers; what they were told."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.confirmed: dict[str, int] = {}
        self.possible: dict[str, int] = {}
        self.statuses: Counter[tuple[str, int]] = Counter()
        self._ends = threading.Event()
        self._threads = [threading.Thread(target=self._write) for _ in range(WRITERS)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ends.set()
        for thread in self._threads:
            thread.join()

    def _write(self) -> None:
        with requests.Session() as session:
            while not self._ends.wait(0.05):
                made = self._call(session, "POST", "records/tasks", {"title": "a", "step": 0})
                if made is None or made.status_code != 201:
                    continue
                own = made.json()["id"]
                self.confirmed[own] = self.possible[own] = 0
                for step in (1, 2):
                    self.possible[own] = step
                    path = f"records/tasks/{own}"
                    changed = self._call(session, "PATCH", path, {"step": step})
                    if changed is None or changed.status_code != 200:
                        break
                    self.confirmed[own] = step
                self._call(session, "GET", "records/tasks?limit=5")

    def _call(
        self, session: requests.Session, method: str, path: str, body: object = None
    ) -> requests.Response | None:
        try:
            response = self.site.call(method, path, body, session)
        except requests.RequestException:
            self.statuses[method, 0] += 1
            return None
        self.statuses[method, response.status_code] += 1
        return response

    def check(self) -> None:
        """Check that nothing confirmed is lost, and that nobody got an error but a 503."""
        stored = self.site.all()
        lost = {
            id: (step, stored.get(id))
            for id, step in self.confirmed.items()
            if id not in stored or not step <= stored[id] <= self.possible[id]
        }
        assert not lost
        assert {status for _, status in self.statuses} <= {0, 200, 201, 503}, self.statuses


@contextmanager
def site(folder: Path) -> Iterator[Site]:
    port = free_port()
    folder.chmod(0o755)
    for parent in folder.parents[:3]:
        parent.chmod(parent.stat().st_mode | 0o055)  # PostgreSQL runs as another user
    with cluster.running(folder, port) as running:
        yield Site(running)


def working(load: Load, act: Callable[[], object]) -> None:
    """Do something under load, and wait until writes are confirmed again."""
    act()
    load.site.until_ready()
    before, deadline = len(load.confirmed), time.monotonic() + 60
    while len(load.confirmed) < before + 5:
        assert time.monotonic() < deadline, load.statuses
        time.sleep(0.05)


def test_cluster_process_kill_and_failover_lose_no_confirmed_write(tmp_path: Path) -> None:
    with site(tmp_path) as own:
        with Load(own) as load:
            for name in ("web-1", "pgbouncer"):
                working(load, own.cluster.parts[name].kill)
            working(load, own.cluster.failover)
        load.check()
        assert own.cluster.primary.name == "postgres-2"


@pytest.mark.slow
def test_cluster_parts_can_be_killed_and_restarted(tmp_path: Path) -> None:
    with site(tmp_path) as own:
        with Load(own) as load:
            for part in own.cluster.parts.values():
                working(load, part.kill)
        load.check()
        with Load(own) as load:
            working(load, own.cluster.restart)
        assert not {status for _, status in load.statuses} - {200, 201}, load.statuses
        with Load(own) as load:
            for _ in range(2):
                working(load, own.cluster.failover)
        load.check()
