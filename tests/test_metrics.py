"""`/metrics` tells what happened and what waits, and only to who may know (contract section 11)."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flask import Flask

from app import db, hooks, jobs
from app.ops import metrics
from app.webhooks import versions
from tests.builders import Caller, Cast, make_collection

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


def test_they_are_closed_without_a_token(app: Flask, cast: Cast) -> None:
    for caller in (Caller(app), cast.root):
        assert caller.get("/metrics").status_code == 404


@pytest.mark.parametrize("shown", ["", "Bearer", "Bearer x", f"Basic {TOKEN}", TOKEN, "Bearer ü"])
def test_only_the_token_opens_them(opened: Flask, shown: str) -> None:
    answer = Caller(opened).get("/metrics", headers={"Authorization": shown})
    assert (answer.status_code, answer.json["error"]) == (401, "unauthorized")


def test_requests_are_counted_by_route_and_never_by_account(opened: Flask, cast: Cast) -> None:
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


def test_what_waits_is_told(opened: Flask) -> None:
    with opened.app_context(), db.transaction():
        jobs.enqueue("jobs.purge", {}, account_id=jobs.INSTANCE)
    assert value(opened, 'atrium_queue_due{queue="jobs"}') == 1
    assert 0 <= value(opened, 'atrium_queue_oldest_seconds{queue="jobs"}') < 60
    assert value(opened, 'atrium_queue_due{queue="deliveries"}') == 0


def test_accounts_whose_payloads_are_cut_are_counted(opened: Flask, cast: Cast) -> None:
    assert value(opened, "atrium_webhook_payloads_cut") == 0
    with opened.app_context(), db.transaction():
        versions.cut_payloads(cast.alice.account_id, True)
    assert value(opened, "atrium_webhook_payloads_cut") == 1


def test_where_the_counts_are_gone_requests_are_answered_all_the_same(
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
