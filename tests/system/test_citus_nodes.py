"""Nodes are lost, shards move, backups are restored (docs/scaling.md), by `make citus` alone."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import psycopg2
import pytest
import sqlalchemy as sa
from flask import Flask

from app import create_app, db
from app.accounts.models import ADMIN
from app.context import tenancy
from app.jobs import worker
from tests import builders, services
from tests.builders import Caller, Cast
from tests.usage.test_meters import upload, used

SCRIPT = Path(__file__).parents[2] / "deploy/citus/nodes.sh"
FOLDER = os.environ.get("TEST_CITUS_FOLDER", "")
PORT_OF = sa.text(
    "SELECT nodeport FROM citus_shards WHERE table_name = 'users'::regclass"
    " AND shardid = get_shard_id_for_distribution_column('users', :account)"
)
# As a superuser. Logical replication, the default, cannot write where policies apply.
MOVE = """
SELECT citus_move_shard_placement(
  get_shard_id_for_distribution_column('users', %s), '127.0.0.1', %s, '127.0.0.1', %s,
  shard_transfer_mode := 'block_writes')
"""
pytestmark = pytest.mark.skipif(not FOLDER, reason="only `make citus` has nodes to lose")


def nodes(*arguments: str) -> None:
    subprocess.run([SCRIPT, *arguments], check=True, timeout=60)


def port_of(app: Flask, account_id: str) -> int:
    with app.app_context(), tenancy.as_owner():
        return int(db.connection().scalar(PORT_OF, {"account": account_id}) or 0)


@pytest.fixture(params=("postgresql",))
def database(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def callers(app: Flask, cast: Cast) -> dict[int, Caller]:
    """An admin of an account on each worker."""
    builders.make_collection(cast.root)
    builders.make_drawer(cast.root)
    found = {port_of(app, cast.alice.account_id): cast.alice}
    for number in range(40):
        if len(found) == len(services.CITUS_NODES) - 1:
            break
        account = builders.make_account(app, f"account-{number}")
        admin = builders.make_user(app, account, "admin@acme.example", ADMIN)
        found.setdefault(port_of(app, account), Caller(app, admin))
    for caller in found.values():
        builders.make_record(caller, title="before")
    return found


@pytest.fixture
def lost(callers: dict[int, Caller]) -> Iterator[int]:
    """The port of a worker that is gone until the test ends."""
    port = urlsplit(services.CITUS_NODES[-1]).port
    assert port in callers
    nodes("stop", FOLDER, str(port))
    yield port
    nodes("start", FOLDER)


def test_citus_lost_worker_makes_only_its_accounts_unavailable(
    app: Flask, cast: Cast, callers: dict[int, Caller], lost: int
) -> None:
    record = {"title": "meanwhile"}
    for _ in range(3):  # also over connections of the pool that were open before
        for port, caller in callers.items():
            answers = [
                caller.get("records/posts"),
                caller.get("account/users"),
                caller.get("auth/me"),
                caller.post("records/posts", record),
            ]
            statuses = [answer.status_code for answer in answers]
            if port != lost:
                assert statuses == [200, 200, 200, 201]
                continue
            for answer in answers:
                assert answer.status_code == 503, answer.text
                assert answer.json["error"] == "unavailable"
                assert answer.headers["Retry-After"]
    assert cast.root.acting_in("*").get("records/posts").status_code == 503
    nodes("start", FOLDER)
    with app.app_context():
        worker.run_due()  # workers look over all shards, so they wait for the lost one
    for port, caller in callers.items():
        titles = [one["title"] for one in caller.get("records/posts?sort=id").json["items"]]
        assert titles == ["before", *["meanwhile"] * (0 if port == lost else 3)]
        assert caller.post("records/posts", record).status_code == 201
        inside = cast.root.acting_in(caller.account_id)
        assert inside.get("audit-logs/verify").json["valid"]
    assert cast.root.acting_in("*").get("records/posts").status_code == 200


def move(app: Flask, account_id: str, source: int, target: int) -> None:
    path = urlsplit(app.config["SQLALCHEMY_DATABASE_URI"]).path
    address = urlsplit(services.CITUS_NODES[0])._replace(path=path).geturl()
    with closing(psycopg2.connect(address)) as connection:
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute(MOVE, (account_id, source, target))


def test_citus_shard_move_loses_and_fails_no_write(
    app: Flask, cast: Cast, callers: dict[int, Caller]
) -> None:
    (source, caller), (target, _) = sorted(callers.items())
    statuses, stopped = list[int](), threading.Event()

    def write() -> None:
        while not stopped.is_set():
            statuses.append(caller.post("records/posts", {"title": "x"}).status_code)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        move(app, caller.account_id, source, target)
    finally:
        stopped.set()
        writer.join()
    assert port_of(app, caller.account_id) == target
    assert caller.post("records/posts", {"title": "after"}).status_code == 201
    assert set(statuses) == {201}
    assert caller.get("records/posts").json["total"] == len(statuses) + 2
    inside = cast.root.acting_in(caller.account_id)
    assert inside.get("audit-logs/verify").json["valid"]


def run(app: Flask, *command: str) -> str:
    result = app.test_cli_runner().invoke(args=[*command])
    assert result.exit_code == 0, (command, result.output)
    return result.output


@pytest.fixture
def empty(app: Flask) -> Iterator[str]:
    """The name of an empty database on all nodes, without the extension."""
    name = f"{urlsplit(app.config['SQLALCHEMY_DATABASE_URI']).path[1:]}_restored"
    services.empty_citus_database(name)
    yield name
    services.Postgres().drop_database(name)


def test_citus_backup_is_restored_and_distributed_again(
    app: Flask, cast: Cast, callers: dict[int, Caller], empty: str, tmp_path: Path
) -> None:
    settings, file = app.extensions["atrium.config"], str(tmp_path / "atrium.backup")
    for caller in callers.values():
        upload(caller)
    refused = app.test_cli_runner().invoke(args=["backup", file])
    assert (refused.exit_code, "BYPASSRLS" in refused.output) == (1, True)
    sees_all = services.as_login(settings.database_url, services.CITUS_BACKUP_LOGIN)
    assert "Proved: " in run(
        create_app(replace(settings, database_url=sees_all)), "backup", file, "--verify"
    )
    refused = app.test_cli_runner().invoke(args=["restore", file, "--replace"])
    assert (refused.exit_code, "has the extension citus" in refused.output) == (1, True)

    url = urlsplit(settings.database_url)._replace(path=f"/{empty}").geturl()
    restored = create_app(replace(settings, database_url=url))
    run(restored, "restore", file)
    with restored.app_context():
        db.db.engine.dispose()
    services.join_citus_nodes(empty)
    assert "tables distributed" in run(restored, "shard")
    for log in ("verify", "verify-security"):
        run(restored, "audit", log)
    checks = restored.test_cli_runner().invoke(args=["doctor"]).output.splitlines()
    found = [line.split(None, 2) for line in checks]
    assert {part: state for state, part, *_ in found if part in ("accounts", "shards")} == {
        "accounts": "ok",
        "shards": "ok",
    }
    for caller in callers.values():
        inside = Caller(restored, **caller.headers)
        builders.make_record(inside, title="after")
        listed = inside.get("records/posts?sort=id").json
        assert [one["title"] for one in listed["items"]] == ["before", "after"]
        assert listed["total"] == 2
        assert used(inside)["file_bytes"] == 1000
        upload(inside)
        assert used(inside)["file_bytes"] == 2000
    with restored.app_context(), tenancy.as_owner(), db.transaction() as session:
        session.execute(sa.text("UPDATE files SET removed_at = created_at"))
    for caller in callers.values():  # also where two of them are in one shard
        assert used(Caller(restored, **caller.headers))["file_bytes"] == 0
    with restored.app_context():
        db.db.session.remove()
        db.db.engine.dispose()
