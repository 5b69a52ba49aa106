"""`flask doctor` finds what is missing, and says what to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa
from cryptography.fernet import Fernet
from flask import Flask

from app import create_app, db, jobs
from app.collections import revisions
from tests.builders import Cast, make_collection, make_record
from tests.processes import free_port

Breaking = Callable[[Flask, pytest.MonkeyPatch], None]


@pytest.fixture
def used(app: Flask, cast: Cast) -> Flask:
    """An instance in which something happened."""
    make_collection(cast.root)
    make_record(cast.alice, title="a")
    hook = {"url": "https://receiver.example/", "events": ["create"], "collection": "posts"}
    assert cast.alice.post("webhooks", hook).status_code == 201
    return app


def told(app: Flask) -> tuple[int, dict[str, tuple[str, str]]]:
    """The exit code, and what is said of each part."""
    result = app.test_cli_runner().invoke(args=["doctor"])
    lines = [line.split(None, 2) for line in result.output.splitlines() if line[:1] != "{"]
    return result.exit_code, {part: (state, text) for state, part, text in lines}


def run(statement: str) -> Breaking:
    """What breaks a database."""

    def change(app: Flask, patch: pytest.MonkeyPatch) -> None:
        with app.app_context(), db.transaction() as session:
            session.execute(sa.text(statement))

    return change


def settings(**changes: Any) -> Breaking:
    """What breaks settings."""

    def change(app: Flask, patch: pytest.MonkeyPatch) -> None:
        kept = app.extensions["atrium.config"]
        patch.setitem(app.extensions, "atrium.config", replace(kept, **changes))

    return change


def bring_a_revision(app: Flask, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(revisions, "core_head", lambda: "9999")


def let_a_job_wait(app: Flask, patch: pytest.MonkeyPatch) -> None:
    with app.app_context(), db.transaction() as session:
        jobs.enqueue("jobs.purge", {}, account_id=jobs.INSTANCE)
        session.execute(sa.update(jobs.TABLE).values(due_at=db.database_now(-61)))


def test_a_whole_instance_is_well(used: Flask) -> None:
    code, parts = told(used)
    assert {state for state, text in parts.values()} == {"ok"}
    assert code == 0
    assert set(parts) == {
        *("settings", "database", "migrations", "clock", "secrets", "accounts"),
        *("audit", "worker", "queue", "mail"),
    }


@pytest.mark.parametrize(
    ("part", "breaking", "advice"),
    [
        ("migrations", bring_a_revision, "db upgrade"),
        ("audit", run("UPDATE audit_heads SET last_id = last_id + 1"), "audit verify"),
        ("audit", run("UPDATE audit_heads SET checksum = 'x'"), "audit verify"),
        ("secrets", settings(encryption_key=(Fernet.generate_key().decode(),)), "add the former"),
        ("queue", settings(redis_url="redis://127.0.0.1:1/0"), "Redis does not answer"),
        ("mail", settings(mail_url=f"smtp://127.0.0.1:{free_port()}"), "SERVICE_MAIL_URL"),
        ("worker", let_a_job_wait, "flask --app wsgi worker"),
    ],
)
def test_what_is_broken_is_told_with_what_to_do(
    used: Flask, monkeypatch: pytest.MonkeyPatch, part: str, breaking: Breaking, advice: str
) -> None:
    breaking(used, monkeypatch)
    code, parts = told(used)
    state, text = parts[part]
    assert (code, state) == (1, "fail")
    assert advice in text
    looked_at = {other for other, (state, _) in parts.items() if state != "ok"}
    assert looked_at == {part}


def test_production_is_told_of_what_is_left_as_in_development(
    used: Flask, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings(env="production", audit_checkpoint_key=())(used, monkeypatch)
    code, parts = told(used)
    assert (code, parts["settings"][0]) == (0, "warn")


def test_without_a_database_the_rest_is_told(app: Flask) -> None:
    url = "postgresql+psycopg2://nobody@127.0.0.1:1/none"
    code, parts = told(create_app(replace(app.extensions["atrium.config"], database_url=url)))
    assert (code, parts["database"][0]) == (1, "fail")
    assert parts["mail"][0] == "ok"
    assert "nobody" not in str(parts)
