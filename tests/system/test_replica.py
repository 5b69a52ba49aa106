"""Reads on a replica: only for callers who accept its lag, and never for what decides rights."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import pytest
from flask import Flask
from werkzeug.test import TestResponse

from app import create_app
from app.db import replica as replicas
from app.db import versioned_cache
from app.ops import doctor
from app.web.feature import Finding
from tests import builders, sql
from tests.builders import Caller, Cast, make_collection, make_record
from tests.conftest import make_app, settings_for
from tests.security.reading import reads
from tests.services import Postgres, Replica

SCHEMA = [
    {"name": "title", "type": "text"},
    {"name": "phone", "type": "text", "pii": True, "mask_type": "phone"},
    {"name": "parent", "type": "reference", "collection": "posts"},
]
APPLIED = "Preference-Applied"
READS = ["records/posts", "records/posts/aggregate?functions=count()", "records/posts/export"]


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[Postgres, Replica]]:
    """A primary and its replica."""
    with Postgres(private=True) as primary, Replica(primary) as replica:
        yield primary, replica


@pytest.fixture(scope="module")
def shared(
    servers: tuple[Postgres, Replica], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Flask, Cast]:
    """An application with a replica, and its cast."""
    primary = servers[0]
    folder: Path = tmp_path_factory.mktemp("replica")
    primary.create_database("atrium")
    urls = [
        urlunsplit(urlsplit(server.url)._replace(scheme="postgresql+psycopg2", path="/atrium"))
        for server in servers
    ]
    addresses = {"database_url": urls[0], "database_replica_url": urls[1]}
    app = make_app(settings_for("sqlite", folder, **addresses))
    return app, builders.make_cast(app)


@pytest.fixture
def app(shared: tuple[Flask, Cast], servers: tuple[Postgres, Replica]) -> Iterator[Flask]:
    yield shared[0]
    servers[1].start()
    servers[1].pause(paused=False)


@pytest.fixture
def cast(app: Flask, shared: tuple[Flask, Cast]) -> Iterator[Cast]:
    """The cast, with a collection that all may list."""
    cast = shared[1]
    rules = {f"{name}_rule": "" for name in ("list", "view", "create", "update")}
    made = make_collection(cast.root, "posts", SCHEMA, **rules)
    make_record(cast.alice, title="first", phone="+49 30 1234567")
    yield cast
    assert cast.root.delete(f"collections/{made['id']}").status_code == 200


def stale(seconds: int) -> dict[str, str]:
    return {"Prefer": f"stale={seconds}"}


def caught_up(app: Flask) -> None:
    """Wait until the application knows that the replica has everything."""
    with app.app_context():
        replicas.catch_up(10)
        since = time.monotonic()
        while replicas.lag() > time.monotonic() - since:
            assert time.monotonic() - since < 10
            time.sleep(0.01)


def titles(response: TestResponse) -> list[str]:
    assert response.status_code == 200, response.text
    return [item["title"] for item in response.json["items"]]


@pytest.mark.parametrize("path", READS)
def test_replica_read_with_prefer_stale(app: Flask, cast: Cast, path: str) -> None:
    caught_up(app)
    expected = cast.alice.get(path)
    with sql.statements(app) as sent:
        answer = cast.alice.get(path, headers=stale(5))
    assert answer.headers[APPLIED] == "stale=5"
    assert answer.data == expected.data
    assert not [text for text in sent if "col_posts" in text and "version" not in text]


@pytest.mark.parametrize(
    "value", ["", "stale", "stale=0", "stale=-1", "stale=99999", "stale=1e3", "return=minimal"]
)
def test_replica_is_not_read_without_valid_prefer_stale(app: Flask, cast: Cast, value: str) -> None:
    caught_up(app)
    answer = cast.alice.get("records/posts", headers={"Prefer": value})
    assert (answer.status_code, answer.headers.get(APPLIED)) == (200, None)


def test_replica_with_lag_over_limit_is_not_read(
    app: Flask, cast: Cast, servers: tuple[Postgres, Replica]
) -> None:
    caught_up(app)
    servers[1].pause()
    make_record(cast.alice, title="second")
    old = cast.alice.get("records/posts", headers=stale(600))
    assert (titles(old), old.headers[APPLIED]) == (["first"], "stale=600")
    time.sleep(1.3)
    new = cast.alice.get("records/posts", headers=stale(1))
    assert (titles(new), new.headers.get(APPLIED)) == (["second", "first"], None)


def change(cast: Cast, **values: object) -> None:
    """Change the collection."""
    made = cast.root.get("collections/posts").json
    answer = cast.root.patch(f"collections/{made['id']}", values)
    assert answer.status_code == 200, answer.text


RIGHTS: dict[str, tuple[Callable[[Cast], object], int | list[str]]] = {
    "the rule is closed": (lambda cast: change(cast, list_rule=None), 403),
    "the rule is narrowed": (lambda cast: change(cast, list_rule="created_by = 'nobody'"), []),
    "the collection is renamed": (
        lambda cast: change(cast, name="other"),
        404,
    ),
}


@pytest.mark.parametrize("name", RIGHTS)
def test_replica_read_applies_rights_of_primary(
    app: Flask, cast: Cast, servers: tuple[Postgres, Replica], name: str
) -> None:
    act, expected = RIGHTS[name]
    caught_up(app)
    assert cast.bob.get("records/posts", headers=stale(600)).headers[APPLIED]
    servers[1].pause()
    act(cast)
    answer = cast.bob.get("records/posts", headers=stale(600))
    assert (answer.status_code if answer.status_code != 200 else titles(answer)) == expected
    assert APPLIED not in answer.headers


def test_replica_read_by_deactivated_user_is_401(
    app: Flask, cast: Cast, servers: tuple[Postgres, Replica]
) -> None:
    made = builders.make_user(app, cast.alice.account_id, "mallory@acme.test")
    mallory = Caller(app, made)
    assert mallory.get("records/posts").status_code == 200
    caught_up(app)
    assert mallory.get("records/posts", headers=stale(600)).headers[APPLIED]
    servers[1].pause()
    builders.change_user(app, made.id, is_active=False)
    assert mallory.get("records/posts", headers=stale(600)).status_code == 401


@pytest.mark.parametrize(
    ("rule", "path", "is_applied"),
    [
        ("created_by = @request.auth.id", "records/posts", True),
        ("@owns_record() || created_at < @now", "records/posts", True),
        ("title = 'first'", "records/posts", False),
        ("parent.created_by = @request.auth.id", "records/posts", False),
        ("updated_by = @request.auth.id", "records/posts", False),
    ],
)
def test_replica_is_not_read_for_rules_on_mutable_data(
    app: Flask, cast: Cast, rule: str, path: str, is_applied: bool
) -> None:
    change(cast, list_rule=rule)
    assert cast.alice.get(path).status_code == 200  # the definition is loaded from the primary
    caught_up(app)
    answer = cast.alice.get(path, headers=stale(600))
    assert answer.status_code == 200
    assert (APPLIED in answer.headers) is is_applied


@pytest.mark.parametrize("query", ["expand=parent", "filter=parent.title = 'first'"])
def test_replica_is_not_read_for_rules_on_referenced_records(
    app: Flask, cast: Cast, query: str
) -> None:
    change(cast, view_rule="title != 'x'")
    caught_up(app)
    answer = cast.alice.get(f"records/posts?{query}", headers=stale(600))
    assert (answer.status_code, answer.headers.get(APPLIED)) == (200, None)


def test_replica_read_of_personal_data_is_in_security_log(app: Flask, cast: Cast) -> None:
    caught_up(app)
    assert cast.alice.get("records/posts", headers=stale(600)).headers[APPLIED]
    assert reads(cast.alice)[-1]["details"]["fields"] == ["phone"]


def test_replica_read_that_is_discarded_is_not_in_security_log(
    app: Flask,
    cast: Cast,
    servers: tuple[Postgres, Replica],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caught_up(app)
    servers[1].pause()
    (own,) = cast.alice.get("records/posts").json["items"]
    assert cast.alice.delete(f"records/posts/{own['id']}").status_code in (200, 204)
    count = len(reads(cast.alice))
    monkeypatch.setattr(versioned_cache, "are_current", lambda values: False)
    answer = cast.alice.get("records/posts", headers=stale(600))
    assert (titles(answer), answer.headers.get(APPLIED)) == ([], None)
    assert len(reads(cast.alice)) == count


def test_replica_outage_moves_reads_to_primary(
    app: Flask, cast: Cast, servers: tuple[Postgres, Replica]
) -> None:
    caught_up(app)
    servers[1].kill()
    for path in READS:
        answer = cast.alice.get(path, headers=stale(600))
        assert (answer.status_code, answer.headers.get(APPLIED)) == (200, None)
        assert answer.data


def test_replica_url_of_other_server_fails_doctor(app: Flask, cast: Cast) -> None:
    settings = app.extensions["atrium.config"]
    wrong = create_app(replace(settings, database_replica_url=settings.database_url))
    with wrong.app_context():
        assert replicas.lag() > 600
        time.sleep(0.5)
        assert replicas.lag() > 600
        finding = dict(doctor.run_checks())["replica"]
    assert (finding.state, "accepts writes" in finding.message) == ("fail", True)


def test_replica_lag_is_reported_by_doctor(
    app: Flask, cast: Cast, servers: tuple[Postgres, Replica], monkeypatch: pytest.MonkeyPatch
) -> None:
    def finding() -> Finding:
        with app.app_context():
            return dict(doctor.run_checks())["replica"]

    assert finding().state == "ok"
    monkeypatch.setattr(doctor, "MAX_REPLICA_SECONDS", 0.3)
    servers[1].pause()
    make_record(cast.alice, title="second")
    assert "bytes behind" in finding().message
    servers[1].pause(paused=False)
    servers[1].kill()
    assert (finding().state, "does not answer" in finding().message) == ("warn", True)
