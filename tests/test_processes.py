"""The Procfile's processes on PostgreSQL and Redis, started for real."""

from __future__ import annotations

import json
import secrets
import shlex
import subprocess
import time
import urllib.request
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import requests

from tests import services
from tests.builders import PASSWORD
from tests.processes import PROJECT, environment, free_port, procfile, started, wait_for

STOP_WITHIN_SECONDS = 25


def test_release_web_and_worker_do_the_main_job(tmp_path: Path) -> None:
    port, log = free_port(), tmp_path / "log"
    address = f"http://127.0.0.1:{port}"
    commands = procfile()
    env = environment(
        tmp_path,
        PORT=str(port),
        DATABASE_URL=services.Postgres().create_database(f"test_{secrets.token_hex(6)}"),
        REDIS_URL=services.Redis().url,
        SERVICE_BASE_URL=address,
        SERVICE_SUPERADMIN_EMAIL="root@system.example",
        SERVICE_SUPERADMIN_PASSWORD=PASSWORD,
        SERVICE_METRICS_TOKEN=PASSWORD,
    )
    subprocess.run(shlex.split(commands["release"]), cwd=PROJECT, env=env, check=True)
    web, worker = shlex.split(commands["web"]), shlex.split(commands["worker"])
    with started(web, env, log) as serving, started(worker, env, tmp_path / "worker.log"):
        wait_for(f"{address}/ready", log)
        account = {"account_name": "Acme", "email": "a@acme.example", "password": PASSWORD}
        post(f"{address}/api/v1/auth/register", account)
        mail = wait_for_mail(tmp_path / "instance" / "outbox")
        assert f"{address}/auth/verify-email?token=AA0001-" in mail
        assert refused(port, "x" * 8190) == (414, "uri_too_long")
        assert refused(port, "x" * 7000) == (401, "unauthorized")
        root = {"account": "system", "email": "root@system.example", "password": PASSWORD}
        assert post(f"{address}/api/v1/auth/login", root)["user"]["role"] == "admin"
        assert answered(address, 20) >= 20
        serving.terminate()
        assert serving.wait(STOP_WITHIN_SECONDS) == 0


def answered(address: str, times: int) -> float:
    """How often `/health` answered, by all web processes together."""
    for _ in range(times):
        requests.get(f"{address}/health", timeout=10)
    shown = {"Authorization": f"Bearer {PASSWORD}"}
    text = requests.get(f"{address}/metrics", headers=shown, timeout=10).text
    sample = 'atrium_requests_total{method="GET",route="/health",status="200"} '
    return float(text.partition(sample)[2].partition("\n")[0])


def refused(port: int, text: str) -> tuple[int, str]:
    """The status and the error of a list under a filter."""
    connection = HTTPConnection("127.0.0.1", port, timeout=10)
    with closing(connection):
        connection.request("GET", f"/api/v1/records/posts?filter={text}")
        answer = connection.getresponse()
        assert answer.headers["X-Correlation-ID"]
        return answer.status, json.load(answer)["error"]


def post(url: str, body: dict[str, Any]) -> Any:
    """Send JSON; returns the answer's."""
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)  # noqa: S310
    with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310 - loopback
        return json.load(answer)


def wait_for_mail(outbox: Path) -> str:
    """The first mail that is written down."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        for mail in outbox.glob("*.eml"):
            return mail.read_text()
        time.sleep(0.05)
    raise AssertionError("no mail came")
