"""Backups whose worker is killed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from flask import Flask

from app import create_app
from app.config import Config
from app.jobs import worker
from app.ops import backup_proofs, backup_runs
from app.ops.backup_targets import Target
from tests.builders import Cast
from tests.mailbox import run_jobs
from tests.processes import forked
from tests.test_backups import on_sqlite, scratch_databases
from tests.test_scheduled_backups import app_of, keys, place, run_sql, runs, s3, states, stored  # noqa: F401


def in_progress(environ: dict[str, str], point: str, begun: Path) -> None:
    """Make the pending backup, and stop at a point of it until the process is killed."""
    os.environ.update(environ)

    def stop(*_: object, **__: object) -> None:
        begun.touch()
        time.sleep(120)

    app, patch = create_app(Config.from_env(environ)), pytest.MonkeyPatch()
    if point == "written":
        patch.setattr(backup_proofs, "prove", stop)
    elif point == "restored":
        patch.setattr(backup_proofs, "_count", stop)
    else:
        put, names = Target._put, list[str]()

        def put_some(self: Target, path: Path, sha256: str) -> None:
            put(self, path, sha256)
            names.append(path.name)
            if len(names) == (1 if point == "files" else 2):
                stop()

        patch.setattr(Target, "_put", put_some)
    with app.app_context():
        worker.run_due()


POINTS = ("written", "restored", "files", "published")


@pytest.mark.parametrize(
    ("database", "place"), [("sqlite", "folder"), ("postgresql", "bucket")], indirect=True
)
def test_scheduled_backup_killed_is_resumed_by_next_worker(
    app_of: Callable[..., tuple[Flask, Cast]], place: str, tmp_path: Path
) -> None:
    app, _ = app_of(place)
    settings = app.extensions["atrium.config"]
    environ = {
        "SERVICE_ENV": "test",
        "SERVICE_INSTANCE_DIR": str(tmp_path),
        "SERVICE_DATABASE_URL": settings.database_url,
        "SERVICE_BASE_URL": settings.base_url,
        "SERVICE_BACKUP_TARGET": place,
    }
    left = set[str]()
    for point in POINTS:
        with app.app_context():
            backup_runs.request()
        begun = tmp_path / f"begun-{point}"
        process = forked(in_progress, environ, point, begun)
        deadline = time.monotonic() + 60
        while not begun.exists():
            assert process.is_alive(), point
            assert time.monotonic() < deadline, point
            time.sleep(0.05)
        left |= scratch_databases(app)
        process.kill()
        process.join()
        proved = [run for run in runs(app) if run.status == "proved"]
        assert [one.name for one in stored(app)] == [run.name for run in proved[-1:]]
        assert run_jobs(app) == 0, "the lease of the killed worker"
        run_sql(app, "UPDATE jobs SET due_at = created_at WHERE kind = 'backups.make'")
        run_jobs(app)
        assert set(states(app)) == {"proved"}, point
        assert len(keys(app)) == 3, point  # of one day, the newest stays
        assert scratch_databases(app) == set()
        folders = [*tmp_path.rglob("atrium-backup-*")]
        assert folders == [], point
    assert bool(left) == (not on_sqlite(app))
    assert [run.attempt for run in runs(app)] == [2] * len(POINTS)
