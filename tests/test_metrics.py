"""`/metrics` tells what happened and what waits, and only to who may know."""

from __future__ import annotations

import json
import re
import sqlite3
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import requests
from flask import Flask
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy.exc import TimeoutError as PoolTimeout

from app import db, hooks, jobs, web
from app.db.engine import Pool
from app.errors import TooManyRequests
from app.ids import new_id
from app.ops import metrics
from app.web import rate_limits
from app.webhooks import versions
from tests.builders import Caller, Cast, make_collection, make_record
from tests.project import PROJECT
from tests.receivers import receiving
from tests.webhooks.delivering import deliver, make_webhook

LABELS = {
    *("method", "route", "status", "le", "protocol", "queue", "outcome", "limit"),
    *("quota", "version", "python", "extension", "handler", "result"),
}
TOKEN = "prometheus-shows-this"
SHOWN = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def opened(app: Flask, monkeypatch: pytest.MonkeyPatch) -> Flask:
    """An application with a token for its metrics."""
    settings = replace(app.extensions["atrium.config"], metrics_token=TOKEN)
    monkeypatch.setitem(app.extensions, "atrium.config", settings)
    return app


def value(app: Flask, sample: str) -> float:
    """What `/metrics` says of a sample; 0 where it says nothing."""
    answer = Caller(app).get("/metrics", headers=SHOWN)
    assert answer.status_code == 200
    assert answer.mimetype == "text/plain"
    found = re.search(rf"^{re.escape(sample)} (\S+)$", answer.text, re.MULTILINE)
    return float(found[1]) if found else 0.0


def test_metrics_without_configured_token_are_404(app: Flask, cast: Cast) -> None:
    for caller in (Caller(app), cast.root):
        assert caller.get("/metrics").status_code == 404


@pytest.mark.parametrize("shown", ["", "Bearer", "Bearer x", f"Basic {TOKEN}", TOKEN, "Bearer ü"])
def test_metrics_with_wrong_token_are_401(opened: Flask, shown: str) -> None:
    answer = Caller(opened).get("/metrics", headers={"Authorization": shown})
    assert (answer.status_code, answer.json["error"]) == (401, "unauthorized")


@pytest.mark.long
def test_metrics_count_requests_by_route_not_account(opened: Flask, cast: Cast) -> None:
    make_collection(cast.root)
    route = "/api/v1/records/<collection>"
    sample = f'atrium_requests_total{{method="GET",route="{route}",status="200"}}'
    before = value(opened, sample)
    for caller in (cast.alice, cast.charlie):
        assert caller.get("records/posts").status_code == 200
    cast.alice.get("/made/up")
    assert value(opened, sample) == before + 2
    text = Caller(opened).get("/metrics", headers=SHOWN).text
    for secret in (cast.alice.account_id, cast.charlie.account_id, "made/up", "acme", "posts"):
        assert secret not in text


@pytest.mark.long
def test_metrics_report_due_jobs_and_oldest_age(opened: Flask) -> None:
    with opened.app_context(), db.transaction():
        jobs.enqueue("jobs.purge", {}, account_id=jobs.INSTANCE)
    assert value(opened, 'atrium_queue_due{queue="jobs"}') == 1
    assert 0 <= value(opened, 'atrium_queue_oldest_seconds{queue="jobs"}') < 60
    assert value(opened, 'atrium_queue_due{queue="deliveries"}') == 0


@pytest.mark.long
def test_metrics_count_accounts_with_cut_payloads(opened: Flask, cast: Cast) -> None:
    assert value(opened, "atrium_webhook_payloads_cut") == 0
    with opened.app_context(), db.transaction():
        versions.cut_payloads(cast.alice.account_id, True)
    assert value(opened, "atrium_webhook_payloads_cut") == 1


def test_metrics_failure_does_not_fail_requests(
    opened: Flask,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    def gone(*kind: Any) -> Any:
        raise FileNotFoundError(tmp_path)

    monkeypatch.setattr(metrics, "of_request", gone)
    hooks._log_uncounted.cache_clear()
    assert [Caller(opened).get("/live").status_code for _ in range(3)] == [200] * 3
    assert "".join(capfd.readouterr()).count("requests are not counted") == 1
    monkeypatch.setattr(metrics, "ValueClass", object)
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path / "gone"))
    answer = Caller(opened).get("/metrics", headers=SHOWN)
    assert (answer.status_code, answer.json["error"]) == (503, "unavailable")


# --- Figures of the process, the pool, the limiter and the deliveries -----------------------------


def exposed(app: Flask) -> dict[str, Metric]:
    """The families that `/metrics` exposes, by name, as Prometheus' own parser reads them."""
    text = Caller(app).get("/metrics", headers=SHOWN).text
    families = text_string_to_metric_families(text)
    return {one.name: one for one in families if not one.name.endswith("_created")}


@pytest.mark.long
def test_metrics_families_are_valid_and_name_no_account(opened: Flask, cast: Cast) -> None:
    assert cast.alice.get("users").status_code == 403
    families = exposed(opened)
    assert {"process_cpu_seconds", "process_resident_memory_bytes"} <= families.keys()
    for name, family in families.items():
        assert family.documentation, name
        assert family.type in ("counter", "gauge", "histogram"), name
        assert name.startswith(("atrium_", "process_")), name
        labels = {label for sample in family.samples for label in sample.labels}
        assert labels <= LABELS, name
    (build,) = families["atrium_build_info"].samples
    assert (build.labels["version"], build.value) == (web.VERSION, 1)


@pytest.mark.long
def test_metrics_count_refusals_per_rate_limit(opened: Flask) -> None:
    before = value(opened, 'atrium_rate_limited_total{limit="sample"}')
    with opened.app_context():
        allowance = rate_limits.Limit("sample", 1, 60).of(new_id())
        rate_limits.consume(allowance)
        for refused in (rate_limits.consume, rate_limits.check):
            with pytest.raises(TooManyRequests):
                refused(allowance)
    assert value(opened, 'atrium_rate_limited_total{limit="sample"}') == before + 2


@pytest.mark.long
def test_metrics_count_pool_waits(opened: Flask) -> None:
    pool = Pool(partial(sqlite3.connect, ":memory:"), pool_size=1, max_overflow=0, timeout=0.01)
    before = value(opened, "atrium_db_pool_waits_total")
    lent = pool.acquire()
    with pytest.raises(PoolTimeout):
        pool.acquire()
    pool.release(lent)
    pool.dispose()
    assert value(opened, "atrium_db_pool_waits_total") == before + 1
    assert value(opened, "atrium_db_pool_wait_seconds_total") >= 0.01
    assert value(opened, "atrium_db_pool_limit") >= 1


@pytest.mark.long
def test_metrics_count_delivery_attempts_by_outcome(opened: Flask, cast: Cast) -> None:
    sample = 'atrium_delivery_seconds_count{outcome="delivered"}'
    before = value(opened, sample)
    make_collection(cast.root)
    with receiving() as receiver:
        make_webhook(cast.alice, receiver.url)
        make_record(cast.alice, title="a")
        deliver(opened)
    assert value(opened, sample) == before + 1


def test_metrics_server_of_worker(opened: Flask) -> None:
    port = metrics.serve(opened, "http://127.0.0.1")
    url = f"http://127.0.0.1:{port}"
    assert requests.get(f"{url}/metrics", timeout=10).status_code == 401
    shown = requests.get(f"{url}/metrics", headers=SHOWN, timeout=10)
    assert "atrium_build_info" in shown.text
    assert requests.get(f"{url}/live", timeout=10).status_code == 404


@pytest.mark.long
def test_grafana_dashboard_uses_exposed_metrics(opened: Flask, cast: Cast) -> None:
    board = json.loads((PROJECT / "deploy" / "grafana.json").read_text())
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    named = set(re.findall(r"\b(?:atrium|process)_[a-z_]+", " ".join(queries)))
    bare = {re.sub("_(bucket|count|sum|total)$", "", name) for name in named}
    families = exposed(opened).keys()
    assert bare <= families
    assert {name for name in families if name.startswith("atrium_")} <= bare
