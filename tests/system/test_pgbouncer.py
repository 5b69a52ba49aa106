"""PgBouncer before PostgreSQL: whole sessions work, shared ones are refused in one sentence."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa
from flask import Flask

from app import create_app, db
from app.db import postgres_driver
from tests import builders, services
from tests.builders import Caller, Cast, make_collection, make_record
from tests.conftest import make_app, settings_for
from tests.processes import environment
from tests.project import PROJECT
from tests.services import PgBouncer

# In CI a missing PgBouncer fails the tests.
pytestmark = pytest.mark.skipif(
    not (services.pgbouncer() or os.environ.get("CI")), reason="PgBouncer is not installed"
)
SHARED = [
    {"pool_mode": "transaction"},
    {"pool_mode": "transaction", "default_pool_size": "1"},
    {"pool_mode": "transaction", "server_round_robin": "1"},
    {"pool_mode": "statement"},
]


@pytest.fixture(params=("postgresql",))
def database(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@contextmanager
def pooled(app: Flask, **settings: str) -> Iterator[PgBouncer]:
    """PgBouncer before the application's database."""
    url = app.extensions["atrium.config"].database_url
    with PgBouncer(url, **settings) as pooler:
        yield pooler


def behind(app: Flask, pooler: PgBouncer) -> Flask:
    """Another application, through PgBouncer."""
    return create_app(replace(app.extensions["atrium.config"], database_url=pooler.url))


def run(pooler: PgBouncer, folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """A command of the product through PgBouncer."""
    env = environment(folder, SERVICE_DATABASE_URL=pooler.url, SERVICE_ENV="test")
    return subprocess.run(
        command, cwd=PROJECT, env=env, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("settings", SHARED, ids=str)
def test_pgbouncer_with_shared_sessions_fails_ready_and_doctor(
    app: Flask, cast: Cast, settings: dict[str, str]
) -> None:
    with pooled(app, **settings) as pooler:
        refused = behind(app, pooler)
        answer = Caller(refused).get("/ready")
        assert answer.status_code == 503
        assert answer.json["checks"]["database"] == postgres_driver.REFUSAL
        doctor = refused.test_cli_runner().invoke(args=["doctor"])
        assert doctor.exit_code == 1
        assert f"fail  database    {postgres_driver.REFUSAL}\n" in doctor.output
        assert Caller(refused).get("collections").status_code == 401
        body = {"account": "acme", "email": cast.alice.email, "password": builders.PASSWORD}
        assert Caller(refused).post("auth/login", body).status_code == 503


@pytest.mark.parametrize(
    "command",
    [
        ("gunicorn", "-c", "deploy/gunicorn.conf.py", "wsgi:app"),
        ("bin/atrium", "worker"),
        ("bin/atrium", "setup"),
        ("bin/atrium", "doctor"),
    ],
    ids=" ".join,
)
def test_pgbouncer_with_shared_sessions_refuses_start(
    app: Flask, tmp_path: Path, command: tuple[str, ...]
) -> None:
    with pooled(app, pool_mode="transaction") as pooler:
        ended = run(pooler, tmp_path, *command)
    assert ended.returncode == 1, ended
    said = ended.stdout + ended.stderr
    assert said.count(postgres_driver.REFUSAL) == 1, said
    assert "Traceback" not in said


def test_pgbouncer_change_to_shared_sessions_fails_ready(
    app: Flask, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_driver, "PASS_SECONDS", 0)
    with pooled(app, pool_mode="session") as pooler:
        noticing = Caller(behind(app, pooler))
        assert noticing.get("/ready").status_code == 200
        pooler.reload(pool_mode="transaction")
        assert noticing.get("/ready").json["checks"]["database"] == postgres_driver.REFUSAL
        pooler.reload(pool_mode="session")
        assert noticing.get("/ready").status_code == 200


def test_pgbouncer_session_pooling_has_settings_of_direct_connection(tmp_path: Path) -> None:
    settings = settings_for("postgresql", tmp_path)
    with PgBouncer(settings.database_url, pool_mode="session") as pooler:
        app = make_app(replace(settings, database_url=pooler.url))
        cast = builders.make_cast(app)
        make_collection(cast.root)
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda n: make_record(cast.alice, title=str(n)), range(20)))
            list(threads.map(lambda n: make_record(cast.charlie, title=str(n)), range(20)))
        assert cast.alice.get("records/posts").json["total"] == 20
        assert Caller(app).get("/ready").status_code == 200
        doctor = app.test_cli_runner().invoke(args=["doctor"])
        assert "isolated by the database, too" in doctor.output
        with app.app_context():
            shown = {
                name: db.connection().scalar(sa.text(f"SHOW {name}"))
                for name in ("timezone", "idle_in_transaction_session_timeout")
            }
        assert shown == {"timezone": "UTC", "idle_in_transaction_session_timeout": "1min"}


def test_pgbouncer_full_session_pool_passes_ready(
    app: Flask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_driver, "PROBE_SECONDS", 0.2)
    with pooled(app, pool_mode="session", default_pool_size="1") as pooler:
        assert Caller(behind(app, pooler)).get("/ready").status_code == 200
