"""Indexes that PostgreSQL builds without blocking writers, and what is left of those it did not."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask

from app import db
from app.collections import index_builds
from app.context import tenancy
from app.db import engine
from tests.builders import Caller, make_collection, make_record
from tests.collections.test_indexes import PUBLISHED, SCHEMA, SLUG, assert_agreement, details
from tests.sql import statements

pytestmark = pytest.mark.parametrize("database", ["postgresql"])


def run(app: Flask, statement: str) -> list[Any]:
    """Run a statement as the owner of the tables."""
    with app.app_context(), db.db.engine.connect() as connection, tenancy.as_owner():
        result = connection.exec_driver_sql(statement, execution_options={"no_parameters": True})
        return list(result) if result.returns_rows else []


BUILDING = (
    "FROM pg_stat_activity"
    " WHERE wait_event_type = 'Lock' AND query LIKE '%INDEX CONCURRENTLY building_%'"
)


@contextmanager
def held_up(app: Flask) -> Iterator[None]:
    """A transaction that holds up builds, as a large table would."""
    with app.app_context(), db.transaction() as session:
        session.execute(sa.text("UPDATE col_posts SET views = 1"))
        yield


def wait_for(app: Flask, query: str) -> None:
    deadline = time.monotonic() + 20
    while not run(app, query):
        assert time.monotonic() < deadline, query
        time.sleep(0.02)


def test_index_build_does_not_block_writers(app: Flask, root: Caller, alice: Caller) -> None:
    made = make_collection(root, schema=SCHEMA)
    record = make_record(alice, title="a", slug="b")
    body = {"indexes": [PUBLISHED, SLUG]}
    with ThreadPoolExecutor(1) as pool:
        with held_up(app):
            change = pool.submit(root.patch, f"collections/{made['id']}", body)
            wait_for(app, f"SELECT 1 {BUILDING}")
            assert alice.post("records/posts", {"title": "c"}).status_code == 201
            assert not change.done()
        answer = change.result()
    assert (answer.status_code, answer.json["indexes"]) == (200, body["indexes"])
    assert alice.get(f"records/posts/{record['id']}").json["views"] == 1
    assert_agreement(app)
    assert run(app, "SELECT 1 FROM pg_index WHERE NOT indisvalid") == []


def test_index_build_runs_no_check_under_a_lock(app: Flask, root: Caller, alice: Caller) -> None:
    made = make_collection(root, schema=SCHEMA, indexes=[PUBLISHED])
    make_record(alice, title="a", slug="b")
    with statements(app) as seen:
        changed = root.patch(f"collections/{made['id']}", {"indexes": [SLUG]})
    assert changed.status_code == 200
    assert any("RENAME TO" in text for text in seen)
    assert not [text for text in seen if "LOCK TABLE" in text or "HAVING" in text]
    assert_agreement(app)


def test_index_build_with_lock_timeout_is_503(
    app: Flask, root: Caller, alice: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_collection(root, schema=SCHEMA)
    make_record(alice)
    monkeypatch.setattr(engine, "LOCK_MILLISECONDS", 100)
    with held_up(app), ThreadPoolExecutor(1) as pool:
        body = {"indexes": [PUBLISHED]}
        answer = pool.submit(root.patch, f"collections/{made['id']}", body).result()
    assert (answer.status_code, answer.json["error"]) == (503, "unavailable")
    with app.app_context():
        index_builds.drop_unfinished({})
    assert root.get("collections/posts").json["indexes"] == []
    assert_agreement(app)


def test_index_build_of_refused_change_leaves_no_index(
    app: Flask, root: Caller, alice: Caller
) -> None:
    made = make_collection(root, schema=SCHEMA)
    make_record(alice)
    body = {"indexes": [PUBLISHED], "list_rule": "nonsense ="}
    assert details(root.patch(f"collections/{made['id']}", body)) == [("list_rule", "rule_invalid")]
    assert_agreement(app)


@pytest.mark.not_on_citus("Citus itself drops the index")
@pytest.mark.parametrize("is_repeated", [False, True])
def test_index_left_by_killed_build_is_dropped(
    app: Flask, root: Caller, alice: Caller, is_repeated: bool
) -> None:
    made = make_collection(root, schema=SCHEMA)
    make_record(alice)
    with held_up(app), ThreadPoolExecutor(1) as pool:
        change = pool.submit(root.patch, f"collections/{made['id']}", {"indexes": [SLUG]})
        wait_for(app, f"SELECT 1 {BUILDING}")
        run(app, f"SELECT pg_terminate_backend(pid) {BUILDING}")
        assert change.result().status_code == 503
    left = "SELECT 1 FROM pg_indexes WHERE indexname LIKE 'building%'"
    assert run(app, left) != []
    if is_repeated:
        again = root.patch(f"collections/{made['id']}", {"indexes": [SLUG]})
        assert again.status_code == 200
    else:
        with app.app_context():
            index_builds.drop_unfinished({})
    assert run(app, left) == []
    assert_agreement(app)


def test_index_builds_run_one_at_a_time(
    app: Flask, root: Caller, alice: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_collection(root, schema=SCHEMA)
    make_record(alice)
    monkeypatch.setattr(index_builds, "TRIES", 1)
    with app.app_context(), db.db.engine.connect() as connection:
        taken = sa.select(sa.func.pg_try_advisory_lock(index_builds.LOCK))
        with tenancy.as_owner():
            assert connection.scalar(taken)
        answer = root.patch(f"collections/{made['id']}", {"indexes": [PUBLISHED]})
        assert (answer.status_code, answer.json["error"]) == (503, "unavailable")
        with tenancy.as_owner():
            connection.scalar(sa.select(sa.func.pg_advisory_unlock(index_builds.LOCK)))
    assert root.patch(f"collections/{made['id']}", {"indexes": [PUBLISHED]}).status_code == 200
