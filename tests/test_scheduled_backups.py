"""Scheduled backups: made by one worker, proved before they count, and never the last one lost."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
import time_machine
from click.testing import Result
from flask import Flask

from app import clock, db, jobs
from app.jobs import worker
from app.ops import backup_runs, backup_targets, backups
from app.ops.backup_models import RUNS
from app.ops.backup_targets import StoredBackup, Target
from tests import builders
from tests.builders import Cast
from tests.conftest import make_app, settings_for
from tests.mailbox import run_jobs
from tests.parallel import at_once
from tests.services import S3

HOUR = timedelta(hours=1)


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    """An S3 server of its own."""
    with S3(private=True) as server:
        yield server


@pytest.fixture(params=["folder", "bucket"])
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
        app = make_app(settings_for(database, tmp_path, backup_target=place, **changes))
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


def cli(app: Flask, *args: str) -> Result:
    return app.test_cli_runner().invoke(args=list(args))


def test_a_backup_is_made_once_per_interval_and_proved(
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


def test_without_a_place_none_are_made(app_of: Callable[..., tuple[Flask, Cast]]) -> None:
    app, _ = app_of("")
    look(app)
    assert runs(app) == []
