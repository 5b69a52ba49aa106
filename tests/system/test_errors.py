"""The service while its database is gone."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from app import db
from app.context import tenancy
from tests import builders, services
from tests.builders import Caller, make_collection, make_record
from tests.conftest import make_app, settings_for
from tests.test_errors import told


@pytest.fixture(scope="module")
def lost(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[services.Postgres, Caller]]:
    """A PostgreSQL of its own, and a signed-in caller of an application that uses it."""
    folder = tmp_path_factory.mktemp("lost")
    with services.Postgres(private=True) as server:
        url = server.url.replace("postgresql://", "postgresql+psycopg2://")
        made = make_app(settings_for("sqlite", folder, database_url=url))
        cast = builders.make_cast(made)
        make_collection(cast.root)
        yield server, cast.alice
        with made.app_context():
            db.db.engine.dispose()


def test_database_outage_is_503_until_it_returns(
    lost: tuple[services.Postgres, Caller],
) -> None:
    server, alice = lost
    kept = make_record(alice, title="kept")
    # The tests' PostgreSQL does not wait for the disk: what it shall remember must be there.
    with alice.app.app_context(), tenancy.as_owner():
        db.connection().execute(sa.text("CHECKPOINT"))
    server.kill()
    started = time.monotonic()
    for answer in (
        alice.get("records/posts"),
        alice.post("records/posts", {"title": "lost"}),
        alice.get("auth/me"),
        alice.post("auth/login", {"account": "acme", "email": alice.email, "password": "x"}),
    ):
        told(answer, 503, "unavailable")
        assert int(answer.headers["Retry-After"]) > 0
        assert "psycopg2" not in answer.text
        assert "127.0.0.1" not in answer.text
    assert alice.get("/health").status_code == 200
    ready = alice.get("/ready")
    assert (ready.status_code, ready.json["status"]) == (503, "unavailable")
    assert ready.json["checks"]["database"] == "unreachable"
    assert time.monotonic() - started < 5
    server.start()
    assert [one["title"] for one in alice.get("records/posts").json["items"]] == ["kept"]
    assert alice.get(f"records/posts/{kept['id']}").json == kept
    assert alice.get("/ready").status_code == 200


def test_database_restart_costs_at_most_one_503(
    lost: tuple[services.Postgres, Caller],
) -> None:
    server, alice = lost
    before = alice.get("records/posts").json["total"]
    server.restart()
    statuses = [alice.post("records/posts", {"title": "new"}).status_code for _ in range(3)]
    assert set(statuses) <= {201, 503}
    assert statuses[1:] == [201, 201]
    assert alice.get("records/posts").json["total"] == before + statuses.count(201)
