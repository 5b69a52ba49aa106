"""Scheduled backups: made by one worker, proved before they count, and never the last one lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
import time_machine
from click.testing import Result
from flask import Flask

from app import clock, db
from app.errors import Conflict
from app.ops import backup_runs, backup_targets, backups
from app.ops.backup_runs import RUNS
from app.ops.backup_targets import StoredBackup, Target
from app.ops.backups import BackupError, Saved
from tests import builders
from tests.audit.chains import verified
from tests.builders import Cast
from tests.conftest import make_own_app
from tests.console.browser import Browser
from tests.mailbox import run_jobs
from tests.parallel import at_once
from tests.services import S3

HOUR = timedelta(hours=1)


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    """An S3 server of its own."""
    with S3(private=True) as server:
        yield server


@pytest.fixture(params=["folder", pytest.param("bucket", marks=pytest.mark.needs_servers)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a place for backups."""
    if request.param == "folder":
        (tmp_path / "backups-of-atrium").mkdir()
        return str(tmp_path / "backups-of-atrium")
    url: str = request.getfixturevalue("s3").url
    return url.replace("/atrium?", f"/{tmp_path.name}?")


@pytest.fixture
def app_of(database: str, tmp_path: Path) -> Iterator[Callable[..., tuple[Flask, Cast]]]:
    """Makes an instance with a record, an uploaded file and a place for backups."""
    made = list[Flask]()

    def make(place: str, **changes: Any) -> tuple[Flask, Cast]:
        app = make_own_app(database, tmp_path, backup_target=place, **changes)
        made.append(app)
        cast = builders.make_cast(app)
        builders.make_collection(cast.root, "papers", [{"name": "file", "type": "file"}])
        form = {"file": (BytesIO(b"the bytes"), "a.txt")}
        assert cast.alice.post("records/papers", data=form).status_code == 201
        return app, cast

    yield make
    for app in made:
        with app.app_context():
            db.db.session.remove()
            db.db.engine.dispose()


def look(app: Flask) -> None:
    """Do what a worker does when it looks for a backup that is due."""
    with app.app_context():
        backup_runs.schedule({})
    run_jobs(app)


def runs(app: Flask) -> list[Any]:
    with app.app_context():
        found = list(db.connection().execute(sa.select(RUNS).order_by(RUNS.c.created_at)))
        db.db.session.remove()
    return found


def states(app: Flask) -> list[str]:
    return [run.status for run in runs(app)]


def target(app: Flask) -> Target:
    with app.app_context():
        return backup_targets.current()


def stored(app: Flask) -> list[StoredBackup]:
    with app.app_context():
        return target(app).backups()


def keys(app: Flask) -> set[str]:
    """All that is in the place of backups."""
    with app.app_context():
        return {blob.key for blob in target(app)._storage.blobs()}


def run_sql(app: Flask, statement: str) -> None:
    with app.app_context(), db.transaction() as session:
        session.execute(sa.text(statement))


def cli(app: Flask, *args: str) -> Result:
    return app.test_cli_runner().invoke(args=list(args))


@pytest.mark.long
def test_scheduled_backup_is_made_once_per_interval_and_proved(
    app_of: Callable[..., tuple[Flask, Cast]], place: str
) -> None:
    app, _ = app_of(place)
    look(app)
    (run,) = runs(app)
    assert (run.status, run.error) == ("proved", None)
    (backup,) = stored(app)
    assert backup.name == run.name
    assert backup.proof["sha256"] == run.sha256
    assert backup.proof["files"]
    assert (run.files, backup.proof["files"]["missing"]) == (1, 0)
    assert run.rows == backup.proof["rows"] > 0
    assert run.size == backup.size
    assert keys(app) == {run.name, f"{run.name}.files.tar", f"{run.name}.proof.json"}
    assert "key:secret" not in run.place
    look(app)
    with time_machine.travel(clock.now() + 23 * HOUR):
        look(app)
    assert states(app) == ["proved"]
    with time_machine.travel(clock.now() + 25 * HOUR):
        look(app)
    assert states(app) == ["proved", "proved"]


def test_scheduled_backup_without_target_is_not_made(
    app_of: Callable[..., tuple[Flask, Cast]],
) -> None:
    app, cast = app_of("")
    look(app)
    assert Browser(app, cast.root).send("health/back-up").status_code == 409
    assert runs(app) == []


@pytest.mark.long
def test_scheduled_backup_failure_is_shown_and_retried(
    app_of: Callable[..., tuple[Flask, Cast]], tmp_path: Path
) -> None:
    (tmp_path / "here").mkdir()
    app, cast = app_of(str(tmp_path / "here"), metrics_token="t" * 16)
    console = Browser(app, cast.root)
    assert "No backup was proved in time." in console.get("health").text
    assert "none is proved yet" in cli(app, "doctor").output
    assert verified(cast.root)["valid"]  # seals the changes
    run_sql(app, "UPDATE audit_heads SET last_id = last_id + 1")
    look(app)
    look(app)
    (run,) = runs(app)
    assert (run.status, run.proved_at) == ("failed", None)
    assert "audit log is broken" in run.error
    assert keys(app) == set()
    page = console.get("health").text
    assert "The last backup failed." in page
    assert "audit log is broken" in page
    assert "audit log is broken" in cli(app, "doctor").output
    metrics = app.test_client().get("/metrics", headers={"Authorization": f"Bearer {'t' * 16}"})
    assert "atrium_backup_failing 1.0" in metrics.text
    assert "\natrium_backup_failure_age_seconds " in metrics.text
    assert "\natrium_backup_age_seconds " not in metrics.text
    for minutes, count in ((9, 1), (11, 2), (11 + 19, 2), (11 + 21, 3)):
        with time_machine.travel(run.finished_at + timedelta(minutes=minutes)):
            look(app)
        assert states(app) == ["failed"] * count


def test_scheduled_backup_to_missing_folder_fails(
    app_of: Callable[..., tuple[Flask, Cast]], tmp_path: Path
) -> None:
    app, _ = app_of(str(tmp_path / "missing"))
    look(app)
    assert [run.error for run in runs(app)] == [
        f"{tmp_path}/missing is no folder: create it, or mount it"
    ]
    assert not (tmp_path / "missing").exists()


@pytest.mark.long
def test_scheduled_backup_on_demand_in_console(
    app_of: Callable[..., tuple[Flask, Cast]], tmp_path: Path
) -> None:
    (tmp_path / "here").mkdir()
    app, cast = app_of(str(tmp_path / "here"), metrics_token="t" * 16)
    console = Browser(app, cast.root)
    for other in (cast.alice, cast.bob):
        assert Browser(app, other).send("health/back-up").status_code == 403
    assert app.test_client().post("/console/health/back-up").status_code in (303, 400)
    assert runs(app) == []
    assert "Back up now" in console.get("health").text
    assert "A worker makes the backup." in console.done("health/back-up")
    assert "Back up now" not in console.get("health").text
    assert console.send("health/back-up").status_code == 409
    assert states(app) == ["pending"]
    run_jobs(app)
    (run,) = runs(app)
    page = console.get("health").text
    for text in (run.name, run.sha256, "Back up now", "Uploaded files compared: 1."):
        assert text in page
    found = cli(app, "doctor").output
    assert "ok    backups     the last proved one is of" in found
    metrics = app.test_client().get("/metrics", headers={"Authorization": f"Bearer {'t' * 16}"})
    assert "\natrium_backup_age_seconds " in metrics.text
    assert "atrium_backup_failing 0.0" in metrics.text
    with time_machine.travel(clock.now() + 49 * HOUR):
        assert "warn  backups" in cli(app, "doctor").output


def test_scheduled_backup_has_one_pending_run(
    app_of: Callable[..., tuple[Flask, Cast]], tmp_path: Path
) -> None:
    (tmp_path / "here").mkdir()
    app, _ = app_of(str(tmp_path / "here"))

    def request(number: int) -> bool:
        with app.app_context():
            try:
                backup_runs.request()
            except Conflict:
                return False
            finally:
                db.db.session.remove()
            return True

    assert sorted(at_once(4, request)) == [False, False, False, True]
    assert states(app) == ["pending"]
    run_sql(app, "UPDATE jobs SET status = 'failed'")  # its workers are dead, it is given up
    look(app)
    assert [(run.status, run.error) for run in runs(app)] == [
        ("failed", backup_runs.INTERRUPTED),
    ]


def of(*moments: str) -> list[StoredBackup]:
    made: Any = {}
    return [
        StoredBackup(moment, datetime.fromisoformat(moment).replace(tzinfo=UTC), made, 1)
        for moment in moments
    ]


@pytest.mark.parametrize(
    ("daily", "weekly", "kept"),
    [
        (0, 0, {"2026-11-27T12:00"}),
        (1, 0, {"2026-11-27T12:00"}),
        (2, 0, {"2026-11-27T12:00", "2026-11-25T23:00"}),
        (0, 2, {"2026-11-27T12:00", "2026-11-22T01:00"}),
        (3, 3, {"2026-11-27T12:00", "2026-11-25T23:00", "2026-11-22T01:00", "2026-11-10T01:00"}),
    ],
)
def test_scheduled_backup_retention_keeps_newest_of_days_and_weeks(
    daily: int, weekly: int, kept: set[str]
) -> None:
    stored = of(
        *("2026-11-10T01:00", "2026-11-22T00:00", "2026-11-22T01:00"),
        *("2026-11-25T22:00", "2026-11-25T23:00", "2026-11-27T00:00", "2026-11-27T12:00"),
    )
    assert backup_runs.to_keep(stored, daily, weekly) == kept
    assert backup_runs.to_keep([], daily, weekly) == set()


@pytest.mark.long
def test_scheduled_backup_deletes_older_after_newer_is_proved(
    app_of: Callable[..., tuple[Flask, Cast]], place: str
) -> None:
    app, cast = app_of(place, backup_daily=1, backup_weekly=0)
    assert verified(cast.root)["valid"]  # seals the changes
    look(app)
    with app.app_context():  # another instance has the same place
        (first,) = target(app).backups()
        other = first.name.replace("atrium-2", "atrium-1")
        for key, size in target(app)._sizes().items():
            content = b"".join(target(app)._storage.read(key, 0, size))
            file = Path(app.instance_path) / "copied"
            file.write_bytes(content.replace(b"http://atrium.test", b"http://other.test"))
            target(app)._storage.put(key.replace(first.name, other), file, {})
    run_sql(app, "UPDATE audit_heads SET last_id = last_id + 1")
    with time_machine.travel(clock.now() + 25 * HOUR):
        look(app)
    assert states(app) == ["proved", "failed"]
    assert {one.name for one in stored(app)} == {first.name, other}
    run_sql(app, "UPDATE audit_heads SET last_id = last_id - 1")
    with time_machine.travel(clock.now() + 50 * HOUR):
        look(app)
    assert states(app) == ["proved", "failed", "proved"]
    newest = runs(app)[-1]
    assert {one.name for one in stored(app)} == {newest.name, other}
    assert len(keys(app)) == 6
    assert [bool(run.deleted_at) for run in runs(app)] == [True, False, False]


def test_scheduled_backup_with_lost_lease_publishes_nothing(
    app_of: Callable[..., tuple[Flask, Cast]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    app, _ = app_of(str(tmp_path / "here"))
    create, stale = backups.create, ["first attempt"]

    def take_over(path: Path) -> Saved:
        if stale.pop() == "first attempt":
            with app.app_context():
                stale.append("second attempt")
                backup_runs.make({"run_id": runs(app)[0].id})
                assert states(app) == ["proved"]
            raise BackupError("the first attempt ends later")
        return create(path)

    monkeypatch.setattr(backups, "create", take_over)
    look(app)
    (run,) = runs(app)
    assert (run.status, run.error, run.attempt) == ("proved", None, 2)
    assert len(keys(app)) == 3

    def lose_claim(path: Path) -> Saved:
        run_sql(app, "UPDATE backup_runs SET attempt = attempt + 1 WHERE status = 'pending'")
        return create(path)

    monkeypatch.setattr(backups, "create", lose_claim)
    with time_machine.travel(clock.now() + 25 * HOUR):
        look(app)
    assert states(app) == ["proved", "pending"]
    assert len(keys(app)) == 3


@pytest.mark.not_on_citus(
    "A restore needs a database without the extension: tests/system/test_citus_nodes.py has it"
)
def test_scheduled_backup_is_listed_and_restored_by_name(
    app_of: Callable[..., tuple[Flask, Cast]], place: str
) -> None:
    app, cast = app_of(place)
    look(app)
    (run,) = runs(app)
    listed = cli(app, "backup", "--list")
    assert listed.exit_code == 0, listed.output
    assert run.name in listed.output
    assert listed.output.rstrip().endswith("proved")
    builders.make_collection(cast.root, "later")
    restored = cli(app, "restore", run.name, "--replace")
    assert restored.exit_code == 0, restored.output
    assert "as it was proved" in restored.output
    assert cast.alice.get("records/later").status_code == 404
    file = cast.alice.get("records/papers").json["items"][0]["file"]
    assert cast.alice.get(f"files/{file['id']}").data == b"the bytes"
    for part in (f"{run.name}.files.tar", run.name):
        with app.app_context():
            here = target(app)
            content = bytearray(b"".join(here._storage.read(part, 0, here._sizes()[part])))
            content[len(content) // 2] ^= 1
            changed = Path(app.instance_path) / "changed"
            changed.write_bytes(content)
            here._storage.put(part, changed, {})
        listed = cli(app, "backup", "--list")
        assert listed.exit_code == 1
        assert "altered since it was proved" in listed.output
        refused = cli(app, "restore", run.name, "--replace")
        assert refused.exit_code == 1
        assert "was altered since it was proved" in refused.output
    assert cast.alice.get("records/papers").json["total"] == 1
