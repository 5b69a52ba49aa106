"""Spans of real processes, as a collector of OpenTelemetry gets them."""

from __future__ import annotations

import json
import re
import secrets
import shlex
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests

from app.context import tracing
from tests import services
from tests.builders import OPEN, PASSWORD
from tests.processes import environment, started, stock_command, wait_for
from tests.project import PROJECT, free_port, procfile
from tests.receivers import Receiver, hang, hostile, receiving
from tests.system.collectors import CLIENT, CONSUMER, SERVER, Collector, Span, collecting
from tests.system.goings_on import until

ROOT = "root@system.example"
SECRET, HEADER_SECRET = "confidential-4711", "collector-password"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"
WEB, WORKER = (shlex.split(procfile()[name]) for name in ("web", "worker"))
RUNS = (
    pytest.param(("postgresql", True), id="RQ on PostgreSQL"),
    # Like the first but for the database or the runner.
    pytest.param(("sqlite", False), id="SQLite", marks=pytest.mark.slow),
    pytest.param(("postgresql", False), id="PostgreSQL alone", marks=pytest.mark.slow),
)
SOON = {"OTEL_BSP_SCHEDULE_DELAY": "100"}
NEVER = {"OTEL_BSP_SCHEDULE_DELAY": "600000"}


class Instance:
    """A web process and a worker, with a superadmin signed in."""

    def __init__(self, folder: Path, stack: ExitStack, database: str, **settings: str) -> None:
        self.port, self.log = free_port(), folder / "web.log"
        self.env = environment(
            folder,
            PORT=str(self.port),
            WEB_CONCURRENCY="1",
            SERVICE_SUPERADMIN_EMAIL=ROOT,
            SERVICE_SUPERADMIN_PASSWORD=PASSWORD,
            **settings,
        )
        if database == "postgresql":
            name = f"test_{secrets.token_hex(6)}"
            self.env["DATABASE_URL"] = services.Postgres().create_database(name)
            stack.callback(services.Postgres().drop_database, name)
        self._folder, self._stack = folder, stack
        self.run("setup", check=True)
        self.client = stack.enter_context(requests.Session())
        self.client.trust_env = False

    def run(self, command: str, *, check: bool = False) -> str:
        """Run one of Atrium's commands; returns what it prints."""
        done = subprocess.run(
            [PROJECT / "bin" / "atrium", command],
            cwd=PROJECT,
            env=self.env,
            check=check,
            capture_output=True,
            text=True,
            timeout=60,
        )
        return done.stdout + done.stderr

    def start(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start a process."""
        return self._stack.enter_context(started(command, self.env, self.log))

    def start_web(self) -> subprocess.Popen[bytes]:
        """Start the web process, and sign in."""
        process = self.start(WEB)
        wait_for(f"http://127.0.0.1:{self.port}/live", self.log)
        body = {"account": "system", "email": ROOT, "password": PASSWORD}
        self.token = self("POST", "auth/login", body)["token"]
        self.client.headers["Authorization"] = f"Bearer {self.token}"
        return process

    def __call__(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        """Send a request to the API; returns the JSON of its response."""
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}"
        return self.client.request(method, url, json=body, headers=headers, timeout=20).json()


@dataclass
class Traced:
    """An instance, and what it sent."""

    instance: Instance
    collector: Collector
    receiver: Receiver
    record: dict[str, Any]
    system: str
    has_redis: bool

    def request(self, name: str) -> Span:
        """The newest span of requests of a name."""
        return self.collector.named(name)[-1]


@pytest.fixture(scope="module", params=RUNS)
def traced(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Traced]:
    database, has_redis = request.param
    settings = {**SOON, "OTEL_SERVICE_NAME": "shop"}
    settings["OTEL_EXPORTER_OTLP_HEADERS"] = f"x-key={HEADER_SECRET}"
    if has_redis:
        settings["REDIS_URL"] = services.Redis().emptied(of_module=True)
    with ExitStack() as stack:
        collector = stack.enter_context(collecting())
        receiver = stack.enter_context(receiving())
        settings["OTEL_EXPORTER_OTLP_ENDPOINT"] = collector.url
        folder = tmp_path_factory.mktemp("traced")
        instance = Instance(folder, stack, database, **settings)
        instance.start_web()
        instance.start(WORKER)
        record = work_through(instance, receiver)
        until(lambda: collector.named("POST /api/v1/workflow-webhooks/<token>"))
        until(lambda: collector.named("job delivery"))
        yield Traced(instance, collector, receiver, record, database, has_redis)


def work_through(instance: Instance, receiver: Receiver) -> dict[str, Any]:
    """Send requests with the secret in all their parts; returns a created record."""
    schema = [{"name": "title", "type": "text"}]
    instance("POST", "collections", {"name": "posts", "schema": schema, **OPEN})
    created: dict[str, Any] = {}
    for _ in range(3):  # statements are prepared on their second use
        created = instance("POST", "records/posts", {"title": SECRET})
        headers = {"traceparent": TRACEPARENT, "tracestate": f"shop={SECRET}"}
        instance("GET", f"records/posts/{created['id']}", **headers)
        instance("GET", f"records/posts?filter=title='{SECRET}'", **{"X-Other": SECRET})
    instance("GET", f"{SECRET}/{SECRET}")
    webhook = {
        "url": f"{receiver.url}/{SECRET}",
        "collection": "posts",
        "events": ["update"],
        "headers": {"X-Token": SECRET},
    }
    assert "id" in instance("POST", "webhooks", webhook)
    changed = instance("PATCH", f"records/posts/{created['id']}", {"title": f"{SECRET}-2"})
    assert changed["title"] == f"{SECRET}-2"
    until(lambda: receiver.requests)
    instance("POST", f"workflow-webhooks/{SECRET}", {"a": SECRET})
    return created


def test_tracing_request_span_has_route_status_and_caller(traced: Traced) -> None:
    span = traced.request("GET /api/v1/records/<collection>/<record_id>")
    assert span.kind == SERVER
    assert not span.is_error
    assert span.service == "shop"
    assert span.attributes == {
        "http.request.method": "GET",
        "http.route": "/api/v1/records/<collection>/<record_id>",
        "http.response.status_code": 200,
        "url.scheme": "http",
        "url.path": f"/api/v1/records/posts/{traced.record['id']}",
        "atrium.account_id": traced.record["account_id"],
        "atrium.user_id": traced.record["created_by"],
    }


def test_tracing_request_span_of_unknown_path_omits_path(traced: Traced) -> None:
    (span,) = traced.collector.named("GET")
    assert span.attributes["http.response.status_code"] == 404
    assert "url.path" not in span.attributes
    route = traced.request("POST /api/v1/workflow-webhooks/<token>")
    assert route.attributes["url.path"] == "/api/v1/workflow-webhooks/<token>"


def test_tracing_request_span_continues_client_trace(traced: Traced) -> None:
    for span in traced.collector.named("GET /api/v1/records/<collection>/<record_id>"):
        assert (span.trace_id, span.parent_id) == (TRACE, PARENT)
        assert all(child.trace_id == TRACE for child in traced.collector.children(span))
    assert not traced.request("POST /api/v1/records/<collection>").parent_id


def test_tracing_statement_spans_are_children_of_request(traced: Traced) -> None:
    for name, expected in (
        ("GET /api/v1/records/<collection>/<record_id>", [r"SELECT .*\sFROM col_posts"]),
        ("GET /api/v1/records/<collection>", [r"SELECT .*\sFROM col_posts"]),
        ("POST /api/v1/records/<collection>", ["INSERT INTO col_posts", "audit", "COMMIT"]),
    ):
        children = traced.collector.children(traced.request(name))
        assert {child.kind for child in children} == {CLIENT}
        assert {child.attributes["db.system.name"] for child in children} == {traced.system}
        texts = " ".join(child.attributes["db.query.text"] for child in children)
        for one in expected:
            assert re.search(one, texts, re.DOTALL), texts


def test_tracing_delivery_is_job_span_with_client_span(traced: Traced) -> None:
    job = traced.request("job delivery")
    assert (job.kind, job.parent_id) == (CONSUMER, "")
    (sent,) = traced.receiver.requests
    assert job.attributes == {
        "atrium.job.kind": "delivery",
        "atrium.job.id": sent.delivery,
        "atrium.account_id": traced.record["account_id"],
    }
    (outgoing,) = traced.collector.children(job)
    assert (outgoing.name, outgoing.kind) == ("POST", CLIENT)
    assert outgoing.attributes == {
        "http.request.method": "POST",
        "http.response.status_code": 200,
        "server.address": "127.0.0.1",
        "server.port": traced.receiver.port,
    }
    assert "traceparent" not in sent.headers


def test_tracing_job_span_has_statement_spans(traced: Traced) -> None:
    until(lambda: traced.collector.named("job jobs.purge"))
    job = traced.request("job jobs.purge")
    assert job.kind == CONSUMER
    texts = [one.attributes["db.query.text"] for one in traced.collector.children(job)]
    assert any("jobs" in text for text in texts)


def test_tracing_root_spans_are_requests_and_jobs(traced: Traced) -> None:
    roots = {span.kind for span in traced.collector.spans if not span.parent_id}
    assert roots == {SERVER, CONSUMER}


def test_tracing_export_contains_no_client_values(traced: Traced) -> None:
    sent = b"".join(traced.collector.bodies)
    values = (SECRET, PASSWORD, ROOT, traced.instance.token, HEADER_SECRET, "python-requests")
    assert [value for value in values if value.encode() in sent] == []


def test_tracing_otel_variables_apply_and_stay_secret(traced: Traced) -> None:
    assert {headers["x-key"] for headers in traced.collector.headers} == {HEADER_SECRET}
    printed = traced.instance.run("doctor")
    assert f"ok    traces      go to {traced.collector.url}" in printed
    assert HEADER_SECRET not in printed + traced.instance.log.read_text()


def test_log_lines_have_trace_and_span_id(traced: Traced) -> None:
    span = traced.request("GET /api/v1/records/<collection>/<record_id>")
    lines = [json.loads(line) for line in traced.instance.log.read_text().splitlines()]
    (line,) = [line for line in lines if line.get("span_id") == span.id]
    assert (line["event"], line["trace_id"]) == ("request", TRACE)


# --- Start and stop -----------------------------------------------------------


def test_tracing_stop_flushes_recorded_spans(tmp_path: Path) -> None:
    with ExitStack() as stack:
        collector = stack.enter_context(collecting())
        settings = {**NEVER, "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}
        instance = Instance(tmp_path, stack, "sqlite", **settings)
        web, worker = instance.start_web(), instance.start(WORKER)
        until(lambda: _has_purged(tmp_path))
        assert collector.spans == []
        for process in (web, worker):
            process.send_signal(signal.SIGTERM)
            process.wait(25)
        assert collector.named("POST /api/v1/auth/login")
        assert collector.named("job jobs.purge")


def _has_purged(folder: Path) -> bool:
    finished = "SELECT 1 FROM jobs WHERE kind = 'jobs.purge' AND finished_at IS NOT NULL"
    with closing(sqlite3.connect(folder / "instance" / "atrium.db")) as database:
        return database.execute(finished).fetchone() is not None


def test_tracing_stock_worker_flushes_job_span(tmp_path: Path) -> None:
    with ExitStack() as stack:
        collector, receiver = (stack.enter_context(one()) for one in (collecting, receiving))
        instance = Instance(
            tmp_path,
            stack,
            "postgresql",
            REDIS_URL=services.Redis().emptied(),
            OTEL_EXPORTER_OTLP_ENDPOINT=collector.url,
            **NEVER,
        )
        instance.start_web()
        instance.start(stock_command())
        work_through(instance, receiver)
        until(lambda: collector.named("job delivery"))


def test_tracing_collector_that_hangs_delays_no_request_or_stop(tmp_path: Path) -> None:
    with ExitStack() as stack:
        endpoint = stack.enter_context(hostile(hang)).rstrip("/")
        settings = {**SOON, "OTEL_BSP_MAX_QUEUE_SIZE": "8", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "4"}
        settings["OTEL_EXPORTER_OTLP_ENDPOINT"] = endpoint
        instance = Instance(tmp_path, stack, "sqlite", **settings)
        web = instance.start_web()
        began = time.monotonic()
        for _ in range(50):
            assert instance("GET", "auth/me")["email"] == ROOT
        assert time.monotonic() - began < 5
        web.send_signal(signal.SIGTERM)
        began = time.monotonic()
        web.wait(25)
        assert time.monotonic() - began < 5
        lines = [json.loads(line) for line in instance.log.read_text().splitlines()]
        warnings = [line["message"] for line in lines if line["event"] == "tracing"]
        assert warnings.count("Queue full, dropping ....") == 1


def test_tracing_is_not_loaded_without_endpoint(tmp_path: Path) -> None:
    program = "import sys, wsgi; print([name for name in sys.modules if 'opentelemetry' in name])"
    with collecting() as collector:
        env = environment(tmp_path, OTEL_EXPORTER_OTLP_HEADERS="a=b")
        assert _output(program, env).splitlines()[-1] == "[]"
        assert collector.bodies == []


@pytest.mark.parametrize("program", ["import wsgi", "from app.ops.main import main; main()"])
def test_tracing_start_reports_missing_packages(tmp_path: Path, program: str) -> None:
    hidden = "import sys; sys.modules['opentelemetry'] = None; sys.argv[1:] = ['doctor']; "
    env = environment(tmp_path, OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:4318")
    assert tracing.MISSING in _output(hidden + program, env)


def test_tracing_start_refuses_unusable_otel_variables(tmp_path: Path) -> None:
    env = environment(
        tmp_path, OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9", OTEL_BSP_MAX_QUEUE_SIZE="1"
    )
    assert "An OTEL_ variable cannot be used: max_export" in _output("import wsgi", env)


def test_tracing_malformed_header_is_not_logged(tmp_path: Path) -> None:
    program = (
        "from app import create_app; from app.context import tracing; create_app();"
        "tracing.job('some', '', '').__enter__().__exit__(None, None, None); tracing.close()"
    )
    env = environment(
        tmp_path,
        OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9",
        OTEL_EXPORTER_OTLP_HEADERS=f"{HEADER_SECRET},b=x%0a{HEADER_SECRET}",
    )
    printed = _output(program, env)
    assert "Header format invalid" in printed
    assert "Failed to export" in printed
    assert HEADER_SECRET not in printed


def _output(program: str, env: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=PROJECT,
        env=env,
        capture_output=True,
        check=False,
        text=True,
        timeout=60,
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    ("text", "operation", "shown"),
    [
        ("SELECT a FROM b WHERE c = ?", "SELECT", "SELECT a FROM b WHERE c = ?"),
        ("select 'it''s', %(x)s", "SELECT", "select ?, %(x)s"),
        ("ALTER TABLE t ADD c TEXT DEFAULT 'cut o", "ALTER", "ALTER TABLE t ADD c TEXT DEFAULT ?"),
        ("INSERT INTO t VALUES (?); COMMIT", "COMMIT", "INSERT INTO t VALUES (?); COMMIT"),
        ("", "SQL", ""),
    ],
)
def test_tracing_statement_text_has_no_constants(text: str, operation: str, shown: str) -> None:
    assert tracing._described(text) == (operation, shown)
