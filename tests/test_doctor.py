"""`bin/atrium doctor` finds what is missing, and says what to do."""

from __future__ import annotations

import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from cryptography.fernet import Fernet
from flask import Flask

from app import create_app, db, jobs
from app.audit import sealing
from app.collections import revisions
from app.context import tenancy
from app.db import disk
from app.db.functions import database_now
from app.jobs import worker
from tests import services
from tests.builders import Cast, make_collection, make_record
from tests.conftest import settings_for
from tests.project import free_port

Breaking = Callable[[Flask, pytest.MonkeyPatch], None]


@pytest.fixture
def used(app: Flask, cast: Cast) -> Flask:
    """An instance in which something happened."""
    make_collection(cast.root)
    make_record(cast.alice, title="a")
    hook = {"url": "https://receiver.example/", "events": ["create"], "collection": "posts"}
    assert cast.alice.post("webhooks", hook).status_code == 201
    with app.app_context():
        sealing.settle(None)
        worker.schedule_periodic()  # as a worker does first
    return app


def told(app: Flask) -> tuple[int, dict[str, tuple[str, str]]]:
    """The exit code, and what is said of each part."""
    result = app.test_cli_runner().invoke(args=["doctor"])
    lines = [line.split(None, 2) for line in result.output.splitlines() if line[:1] != "{"]
    return result.exit_code, {part: (state, text) for state, part, text in lines}


def run(statement: str) -> Breaking:
    """What breaks a database."""

    def change(app: Flask, patch: pytest.MonkeyPatch) -> None:
        with app.app_context(), tenancy.as_owner(), db.transaction() as session:
            session.execute(sa.text(statement))

    return change


@contextmanager
def without(app: Flask, patch: pytest.MonkeyPatch, table: str) -> Iterator[None]:
    """A database that has lost a table."""
    run(f"ALTER TABLE {table} RENAME TO away")(app, patch)
    yield
    run(f"ALTER TABLE away RENAME TO {table}")(app, patch)


def settings(**changes: Any) -> Breaking:
    """What breaks settings."""

    def change(app: Flask, patch: pytest.MonkeyPatch) -> None:
        kept = app.extensions["atrium.config"]
        patch.setitem(app.extensions, "atrium.config", replace(kept, **changes))

    return change


def bring_a_revision(app: Flask, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(revisions, "CORE", revisions.CORE | {"9999"})


def let_a_job_wait(app: Flask, patch: pytest.MonkeyPatch) -> None:
    with app.app_context(), db.transaction() as session:
        jobs.enqueue("jobs.purge", {}, account_id=jobs.INSTANCE)
        session.execute(sa.update(jobs.TABLE).values(due_at=database_now(-61)))


def test_doctor_on_healthy_instance_reports_ok(used: Flask, database: str) -> None:
    code, parts = told(used)
    assert {state for state, text in parts.values()} == {"ok"}
    assert code == 0
    shards = ("shards",) if services.CITUS_NODES else ()
    assert list(parts) == [
        *("settings", "database", "clock", "accounts", "migrations", *shards),
        *("names", "types", "search", "secrets", "audit", "worker", "backups"),
        *(("disk",) if database == "sqlite" else ()),
        *("queue", "streams", "mail"),
    ]


@pytest.mark.parametrize("database", ["sqlite"])
def test_doctor_warns_of_nearly_full_disk(used: Flask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "free_bytes", lambda file: disk.WARN_BYTES - 1)
    code, parts = told(used)
    assert (code, parts["disk"][0]) == (0, "warn")
    assert "511 MiB free" in parts["disk"][1]
    monkeypatch.setattr(disk, "free_bytes", lambda file: disk.LOW_BYTES - 1)
    code, parts = told(used)
    assert (code, parts["disk"][0]) == (1, "fail")


@pytest.mark.parametrize(
    ("part", "breaking", "advice"),
    [
        ("migrations", bring_a_revision, "db upgrade"),
        ("audit", run("UPDATE audit_heads SET last_id = last_id + 1"), "audit verify"),
        ("audit", run("UPDATE audit_heads SET checksum = 'x'"), "audit verify"),
        ("secrets", settings(encryption_key=(Fernet.generate_key().decode(),)), "add the old key"),
        ("queue", settings(redis_url="redis://127.0.0.1:1/0"), "Redis does not answer"),
        ("mail", settings(mail_url=f"smtp://127.0.0.1:{free_port()}"), "SERVICE_MAIL_URL"),
        ("worker", let_a_job_wait, "bin/atrium worker"),
    ],
)
def test_doctor_reports_broken_part_with_advice(
    used: Flask, monkeypatch: pytest.MonkeyPatch, part: str, breaking: Breaking, advice: str
) -> None:
    breaking(used, monkeypatch)
    code, parts = told(used)
    state, text = parts[part]
    assert (code, state) == (1, "fail")
    assert advice in text
    looked_at = {other for other, (state, _) in parts.items() if state != "ok"}
    assert looked_at == {part}


@pytest.mark.parametrize(
    ("part", "table"),
    [("secrets", "provider_settings"), ("audit", "audit_heads"), ("worker", "jobs")],
)
def test_doctor_check_that_fails_leaves_others_reported(
    used: Flask, monkeypatch: pytest.MonkeyPatch, part: str, table: str
) -> None:
    with without(used, monkeypatch, table):
        code, parts = told(used)
    assert (code, parts[part][0]) == (1, "fail")
    assert table in parts[part][1]
    out_of_place = {"shards"} if "shards" in parts else set()
    assert {other for other, (state, _) in parts.items() if state != "ok"} == {part} | out_of_place


def test_doctor_warns_of_low_open_file_limit(used: Flask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (1024, 4096))
    state, text = told(used)[1]["streams"]
    assert state == "warn"
    assert "4096 files" in text


def test_doctor_reports_unreadable_migrations(used: Flask, monkeypatch: pytest.MonkeyPatch) -> None:
    with without(used, monkeypatch, "alembic_version"):
        code, parts = told(used)
    assert (code, parts["migrations"][0]) == (1, "fail")
    assert "db upgrade" in parts["migrations"][1]
    assert "alembic_version" in parts["migrations"][1]


def test_doctor_warns_of_database_of_newer_version(
    used: Flask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(revisions, "CORE", revisions.CORE - {revisions.core_head()})
    assert used.test_client().get("/ready").json["checks"]["migrations"] == "ok"
    code, parts = told(used)
    assert (code, parts["migrations"][0]) == (0, "warn")
    assert "newer version" in parts["migrations"][1]


def test_doctor_warns_in_production_of_development_settings(
    used: Flask, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings(env="production", audit_checkpoint_key=())(used, monkeypatch)
    code, parts = told(used)
    assert (code, parts["settings"][0]) == (0, "warn")


def test_doctor_warns_without_worker(used: Flask, monkeypatch: pytest.MonkeyPatch) -> None:
    run("DELETE FROM jobs WHERE kind = 'jobs.purge'")(used, monkeypatch)
    code, parts = told(used)
    assert (code, parts["worker"][0]) == (0, "warn")
    assert "bin/atrium worker" in parts["worker"][1]


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("postgresql+psycopg2://nobody@127.0.0.1:1/none", "Connection refused"),
        ("sqlite:///{a_text}/none.db", "unable to open database file"),
        ("sqlite:///{a_text}", "file is not a database"),
    ],
)
def test_doctor_without_database_reports_the_rest(tmp_path: Path, url: str, reason: str) -> None:
    url = url.format(a_text=shutil.copy(__file__, tmp_path))
    code, parts = told(create_app(replace(settings_for("sqlite", tmp_path), database_url=url)))
    assert (code, parts["database"][0]) == (1, "fail")
    assert reason in parts["database"][1]
    assert parts["mail"][0] == "ok"
    assert "nobody" not in str(parts)


@pytest.mark.not_on_citus("only superusers may set it")
@pytest.mark.parametrize("database", ["postgresql"])
def test_doctor_reports_database_log_with_statement_values(used: Flask) -> None:
    code, parts = told(used)
    assert (code, parts["database"][0]) == (0, "ok")
    assert "its log keeps values of failed statements" in parts["database"][1]
    with used.app_context(), tenancy.as_owner(), db.transaction() as session:
        login = session.scalar(sa.text("SELECT session_user"))
        name = session.scalar(sa.text("SELECT current_database()"))
        quiet = f'ALTER ROLE "{login}" IN DATABASE "{name}" SET log_min_error_statement = panic'
        session.execute(sa.text(quiet))
    with used.app_context():
        db.db.engine.dispose()
    assert "its log keeps" not in told(used)[1]["database"][1]
    with used.app_context(), tenancy.as_owner(), db.transaction() as session:
        session.execute(sa.text(quiet.partition(" SET ")[0] + " RESET ALL"))
