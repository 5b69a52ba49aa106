"""A process that exports and imports a gigabyte."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa

from app import clock
from app.collections import definitions
from app.db import db
from app.files import storage
from app.files.models import FILES
from app.ids import new_id
from tests import builders
from tests.conftest import make_app, settings_for
from tests.project import PROJECT

FILE_BYTES = 64 * 2**20


MOST_BYTES = 150 * 2**20


PROGRAM = """
import os, re, sys
from pathlib import Path
from app import create_app
from app.config import Config
app = create_app(Config.from_env(os.environ))
result = app.test_cli_runner().invoke(args=sys.argv[1:], catch_exceptions=False)
assert result.exit_code == 0, result.output
print(int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024)
"""


ARCHIVE = """
import os, re, sys
from pathlib import Path
from app import create_app
from app.auth import principal as principals
from app.config import Config
from app.portability import person, readable
from app.portability.bundle import snapshot
app = create_app(Config.from_env(os.environ))
account_id, user_id, file = sys.argv[1:]
with app.app_context(), open(file, "wb") as target:
    by = principals.for_user_in_account(account_id, user_id)
    if file.endswith("json"):
        for piece in person.of(user_id, by=by).json():
            target.write(piece)
    else:
        snapshot.seal_events(account_id)
        readable.write(account_id, target, lambda done: None, by=by)
print(int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024)
"""


def peak(environ: dict[str, str], *args: object, program: str = PROGRAM) -> int:
    """The most memory that a command takes, in bytes."""
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, args)],
        cwd=PROJECT,
        env=environ,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
@pytest.mark.parametrize("files", [1, 16])
def test_bundle_of_a_gigabyte_is_moved_in_150_mib(
    database: str, tmp_path: Path, files: int
) -> None:
    settings = settings_for(database, tmp_path)
    app = make_app(settings)
    cast = builders.make_cast(app)
    builders.make_collection(cast.root)
    for number in range(200):
        builders.make_record(cast.alice, title=f"{number} " + "x" * 2000)
    with app.app_context():
        for _ in range(files):
            id, path = new_id(), storage.incoming() / "new"
            data = os.urandom(FILE_BYTES)
            path.write_bytes(data)
            storage.current().put(storage.key_of(cast.alice.account_id, id), path, {})
            row = {
                "account_id": cast.alice.account_id,
                "id": id,
                "name": "large",
                "size": FILE_BYTES,
                "mime_type": "application/octet-stream",
                "sha256": hashlib.sha256(data).hexdigest(),
                "created_at": clock.now(),
            }
            with db.engine.begin() as connection:
                connection.execute(sa.insert(FILES).values(**row))
        db.session.remove()
    secret = tmp_path / "passphrase"
    secret.write_text("a long enough passphrase")
    environ = {
        **os.environ,
        "SERVICE_ENV": "test",
        "SERVICE_DATABASE_URL": settings.database_url,
        "SERVICE_INSTANCE_DIR": str(tmp_path),
    }
    file, how = tmp_path / "acme.bundle", ("--passphrase-file", secret)
    exported = peak(environ, "account", "export", "acme", file, *how)
    imported = peak(environ, "account", "import", file, *how, "--slug", "copy")
    archive = tmp_path / "acme.zip"
    written = peak(environ, cast.alice.account_id, cast.alice.id, archive, program=ARCHIVE)
    assert archive.stat().st_size > files * FILE_BYTES
    assert max(exported, imported, written) <= MOST_BYTES


@pytest.mark.slow
@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_person_with_100_000_records_is_exported_in_150_mib(database: str, tmp_path: Path) -> None:
    settings = settings_for(database, tmp_path)
    app = make_app(settings)
    cast = builders.make_cast(app)
    builders.make_collection(cast.root)
    with app.app_context():
        table, now = definitions.get("posts").table, clock.now()
        times = {"created_at": now, "updated_at": now}
        mine = {"account_id": cast.alice.account_id, "created_by": cast.alice.id}
        with db.engine.begin() as connection:
            for start in range(0, 100_000, 1000):
                rows = [
                    {**mine, **times, "id": new_id(), "title": f"{start + n} " + "x" * 500}
                    for n in range(1000)
                ]
                connection.execute(sa.insert(table), rows)
        db.session.remove()
    environ = {
        **os.environ,
        "SERVICE_ENV": "test",
        "SERVICE_DATABASE_URL": settings.database_url,
        "SERVICE_INSTANCE_DIR": str(tmp_path),
    }
    file = tmp_path / "person.json"
    written = peak(environ, cast.alice.account_id, cast.alice.id, file, program=ARCHIVE)
    assert written <= MOST_BYTES
    assert len(json.loads(file.read_bytes())["records"]) == 100_000
