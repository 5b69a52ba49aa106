"""Whatever is killed: no record names bytes that are not there, and no others stay."""

from __future__ import annotations

import hashlib
import io
import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
import time_machine
from flask import Flask

from app import clock, create_app, db
from app.config import Config
from app.files import purge, storage
from app.files.models import FILES
from tests import builders
from tests.builders import Caller
from tests.conftest import WHOLE, make_app, settings_for
from tests.processes import forked
from tests.services import S3

SCHEMA = [
    {"name": "one", "type": "file"},
    {"name": "more", "type": "file", "options": {"max_files": 3}},
]
SEED, FEW, MANY = 5, 3, 200


def work(environ: dict[str, str], headers: dict[str, str], seed: int, begun: Path) -> None:
    """Change records and their files until somebody kills the process."""
    os.environ.update(environ)
    app, chance = create_app(Config.from_env(environ)), random.Random(seed)
    caller, last = Caller(app, **headers), {}
    while True:
        answer = caller.get("records/papers?limit=20&fields=id,one,more")
        records = [one["id"] for one in answer.json["items"]]
        path = f"records/papers/{chance.choice(records)}" if records else ""
        data = chance.randbytes(chance.choice([10, 3000, 300_000]))
        form = {"one": (io.BytesIO(data), "a"), "more": [(io.BytesIO(data), str(n)) for n in "ab"]}
        act = chance.randrange(8) if path else 0
        if act in (0, 1):
            caller.post("records/papers", data=form)
        elif act in (2, 3):
            caller.patch(path, data={"one": (io.BytesIO(data), "b")})
        elif act == 4:
            made = caller.post("files/upload", data={"file": (io.BytesIO(data), "c")})
            if made.status_code == 201:  # what kills left over waits, and a user's room ends
                caller.patch(path, {"more": [made.json["file"]["id"]]})
        elif act == 5:
            changes = caller.get(f"{path}/history").json["items"]
            caller.post(f"{path}/restore", {"audit_id": chance.choice(changes)["audit_id"]})
        elif act == 6:
            caller.delete(path)
        else:
            with app.app_context(), time_machine.travel(clock.now() + chance.choice(LATER)):
                chance.choice([purge.expire, purge.sweep])(last)
        begun.touch()  # so that something is done between two kills, however busy the machine is


LATER = [timedelta(0), timedelta(hours=3), timedelta(days=40)]


@contextmanager
def bucket(kind: str) -> Iterator[str]:
    """The address of the storage."""
    if kind == "folder":
        yield ""
        return
    with S3(private=True) as server:
        yield server.url


@WHOLE
@pytest.mark.parametrize(
    ("database", "kind"),
    [
        ("sqlite", "folder"),
        ("postgresql", "s3"),
        pytest.param("sqlite", "s3", marks=pytest.mark.slow),
        pytest.param("postgresql", "folder", marks=pytest.mark.slow),
    ],
)
def test_files_and_records_agree_after_kills(
    database: str, kind: str, whole: bool, tmp_path: Path
) -> None:
    chance = random.Random(SEED)
    with bucket(kind) as url:
        settings = replace(settings_for(database, tmp_path), files_url=url)
        app = make_app(settings)
        cast = builders.make_cast(app)
        builders.make_collection(cast.root, "papers", SCHEMA)
        environ = {
            "SERVICE_ENV": "test",
            "SERVICE_INSTANCE_DIR": str(tmp_path),
            "SERVICE_DATABASE_URL": settings.database_url,
            "SERVICE_BASE_URL": "http://atrium.test",
            "SERVICE_FILES_URL": url,
        }
        kills, named = MANY if whole else FEW, dict[str, Any]()
        for kill in range(10 * kills):
            if kill >= kills and named:  # on a busy machine, little is done between two kills
                break
            begun = tmp_path / f"begun-{kill}"
            process = forked(work, environ, dict(cast.alice.headers), kill, begun)
            deadline = time.monotonic() + 30
            while not begun.exists():
                assert process.is_alive()
                assert time.monotonic() < deadline
                time.sleep(0.01)
            time.sleep(chance.uniform(0.05, 0.6))
            assert process.is_alive(), "it was to work until it is killed"
            process.kill()
            process.join()
            named = files_of(cast.alice)
            check_bytes(app, named)
        with app.app_context(), time_machine.travel(clock.now() + timedelta(days=60)):
            purge.expire({})
            purge.sweep({})
        assert stored(app) == named.keys()
        with app.app_context():
            assert set(db.connection().scalars(sa.select(FILES.c.id))) == named.keys()
            db.db.session.remove()
            db.db.engine.dispose()
        assert named


def files_of(caller: Caller) -> dict[str, Any]:
    """The files that records name."""
    records = caller.get("records/papers/export?format=json").json
    found = [one for record in records for one in [record["one"], *(record["more"] or ())] if one]
    assert len({one["id"] for one in found}) == len(found)
    return {one["id"]: one for one in found}


def check_bytes(app: Flask, named: dict[str, Any]) -> None:
    """All bytes are there, unchanged."""
    with app.app_context():
        for row in db.connection().execute(sa.select(FILES).where(FILES.c.id.in_(named))).all():
            parts = storage.current().read(f"{row.account_id}/{row.id}", 0, row.size)
            assert hashlib.sha256(b"".join(parts)).hexdigest() == named[row.id]["sha256"]
            named[row.id]["checked"] = True
        db.db.session.remove()
    assert all(one.get("checked") for one in named.values())


def stored(app: Flask) -> set[str]:
    """The ids of all blobs."""
    with app.app_context():
        return {blob.key.rpartition("/")[2] for blob in storage.current().blobs()}
