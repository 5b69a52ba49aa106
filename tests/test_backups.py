"""What was backed up comes back whole, and nothing is overwritten unasked."""

from __future__ import annotations

import hashlib
import itertools
import json
import shutil
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import psycopg2
import pytest
import sqlalchemy as sa
from click.testing import Result
from flask import Flask

from app import create_app, db
from app.context import tenancy
from app.db import engine, sqlite_driver
from app.ops import backup_proofs, backups
from app.ops.backups import Saved
from app.ops.scratch import _prefix
from tests import builders, services
from tests.audit.chains import verified
from tests.builders import Cast
from tests.conftest import make_own_app, settings_for


@pytest.fixture
def app(app: Flask, database: str, tmp_path: Path) -> Flask:
    """The application; on Citus by a login that may back up."""
    on_citus = services.CITUS_NODES and database == "postgresql"
    return make_own_app(database, tmp_path) if on_citus else app


@pytest.fixture
def kept(database: str, tmp_path: Path) -> Iterator[tuple[Flask, Cast]]:
    """An instance of its own, with a record."""
    app = make_own_app(database, tmp_path)
    cast = builders.make_cast(app)
    builders.make_collection(cast.root)
    builders.make_record(cast.alice, title="kept")
    yield app, cast
    with app.app_context():
        db.db.session.remove()
        db.db.engine.dispose()


def on_sqlite(app: Flask) -> bool:
    with app.app_context():
        return engine.current_engine().dialect.name == "sqlite"


def connected(app: Flask) -> Any:
    """A connection of another program's."""
    with app.app_context():
        url = engine.current_engine().url.set(drivername="postgresql")
    if on_sqlite(app):
        return sqlite3.connect(str(url.database))
    return psycopg2.connect(url.render_as_string(hide_password=False))


def run(app: Flask, *args: str) -> Result:
    return app.test_cli_runner().invoke(args=list(args))


@pytest.mark.not_on_citus(
    "A restore needs a database without the extension: tests/system/test_citus_nodes.py has it"
)
def test_backup_restore_round_trip(kept: tuple[Flask, Cast], tmp_path: Path) -> None:
    app, cast = kept
    file = tmp_path / "atrium.backup"
    before = cast.alice.get("records/posts").json
    assert run(app, "backup", str(file)).exit_code == 0
    assert file.stat().st_mode & 0o777 == 0o600
    builders.make_record(cast.alice, title="lost")
    builders.make_collection(cast.root, "later")
    refused = run(app, "restore", str(file))
    assert refused.exit_code == 1
    assert "--replace" in refused.output
    assert cast.alice.get("records/posts").json["total"] == 2
    restored = run(app, "restore", str(file), "--replace")
    assert restored.exit_code == 0, restored.output
    assert cast.alice.get("records/posts").json == before
    assert cast.alice.get("records/later").status_code == 404
    assert run(app, "audit", "verify").exit_code == 0
    assert builders.make_record(cast.alice, title="new")["title"] == "new"
    told = run(app, "doctor").output.splitlines()
    assert [line.split()[0] for line in told if " accounts " in line] == ["ok"]


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_backup_ends_during_constant_writes(
    kept: tuple[Flask, Cast], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, _ = kept
    with app.app_context():
        address = str(engine.current_engine().url.database)
    number = itertools.count(1)

    class Source(sqlite3.Connection):
        def backup(self, target: sqlite3.Connection, **options: Any) -> None:
            super().backup(target, **{**options, "progress": change})

    def change(*_: int) -> None:
        changes = next(number)
        assert changes < 1000
        with closing(sqlite3.connect(address, isolation_level=None)) as other:
            other.execute(f"PRAGMA user_version = {changes}")

    monkeypatch.setattr(backups, "PAGES_PER_STEP", 1)
    monkeypatch.setattr(backups, "_sqlite", lambda: sqlite3.connect(address, factory=Source))
    assert run(app, "backup", str(tmp_path / "atrium.backup")).exit_code == 0


def test_backup_of_database_without_tables_is_refused(database: str, tmp_path: Path) -> None:
    app = create_app(settings_for(database, tmp_path))
    refused = run(app, "backup", str(tmp_path / "atrium.backup"))
    assert refused.exit_code == 1
    assert "no tables of Atrium: check SERVICE_DATABASE_URL" in refused.output
    assert not (tmp_path / "atrium.backup").exists()


@pytest.mark.not_on_citus(
    "A restore needs a database without the extension: tests/system/test_citus_nodes.py has it"
)
def test_restore_writes_nothing_beside_backup_file(
    kept: tuple[Flask, Cast], tmp_path: Path
) -> None:
    app, cast = kept
    folder = tmp_path / "kept"
    folder.mkdir()
    assert run(app, "backup", str(folder / "atrium.backup")).exit_code == 0
    assert run(app, "restore", str(folder / "atrium.backup"), "--replace").exit_code == 0
    assert [path.name for path in folder.iterdir()] == ["atrium.backup"]
    assert cast.alice.get("auth/me").status_code == 200


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_restore_of_sqlite_copy_includes_its_wal(kept: tuple[Flask, Cast], tmp_path: Path) -> None:
    app, cast = kept
    with app.app_context():
        url = engine.current_engine().url
    log = Path(f"{url.database}-wal")
    assert log.stat().st_size
    shutil.copy(str(url.database), tmp_path / "copy")
    shutil.copy(log, tmp_path / "copy-wal")
    before = cast.alice.get("records/posts").json
    builders.make_record(cast.alice, title="lost")
    assert run(app, "restore", str(tmp_path / "copy"), "--replace").exit_code == 0
    assert cast.alice.get("records/posts").json == before


def tables(app: Flask) -> set[str]:
    with app.app_context():
        return set(sa.inspect(engine.current_engine()).get_table_names())


@pytest.mark.not_on_citus(
    "A restore needs a database without the extension: tests/system/test_citus_nodes.py has it"
)
@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_restore_refused_by_server_changes_nothing(
    kept: tuple[Flask, Cast], tmp_path: Path
) -> None:
    app, cast = kept
    file = str(tmp_path / "atrium.backup")
    with closing(connected(app)) as other, other, other.cursor() as cursor:
        cursor.execute("CREATE SCHEMA reports")
    assert run(app, "backup", file).exit_code == 0
    builders.make_record(cast.alice, title="later")
    before = tables(app)
    refused = run(app, "restore", file, "--replace")
    assert refused.exit_code == 1
    assert '"reports" already exists' in refused.output
    assert tables(app) == before
    assert cast.alice.get("records/posts").json["total"] == 2


@pytest.mark.not_on_citus(
    "A restore needs a database without the extension: tests/system/test_citus_nodes.py has it"
)
def test_restore_with_active_sessions_times_out(
    app: Flask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = str(tmp_path / "atrium.backup")
    assert run(app, "backup", file).exit_code == 0
    monkeypatch.setattr(backups, "LOCK_SECONDS", 0.05)
    monkeypatch.setattr(sqlite_driver, "BUSY_SECONDS", 0.05)
    begun = "BEGIN IMMEDIATE" if on_sqlite(app) else "SELECT count(*) FROM accounts"
    with closing(connected(app)) as other:
        other.cursor().execute(begun)
        told = run(app, "restore", file, "--replace")
    assert (told.exit_code, "stop web and worker" in told.output) == (1, True)


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_backup_with_locked_table_times_out(
    app: Flask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backups, "LOCK_SECONDS", 0.05)
    with closing(connected(app)) as other:
        other.cursor().execute("LOCK TABLE webhooks")
        told = run(app, "backup", str(tmp_path / "atrium.backup"))
    assert (told.exit_code, "a table is locked" in told.output) == (1, True)
    assert list(tmp_path.glob("atrium.backup*")) == []


def test_backup_replaces_leftovers_and_reports_file_errors(app: Flask, tmp_path: Path) -> None:
    (tmp_path / "one.part").write_text("left over")
    (tmp_path / "other.part").mkdir()
    for name in ("one", "other"):
        assert run(app, "backup", str(tmp_path / name)).exit_code == 0
    for command in ("backup", "restore"):
        result = run(app, command, str(tmp_path / ("x" * 300)))
        assert (result.exit_code, "File name too long" in result.output) == (1, True)


def test_backup_reports_first_error_of_pg_dump(
    app: Flask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "pg_dump"
    program.write_text("#!/bin/sh\nprintf 'hm\npg_dump: error: why\npg_dump: detail\n' >&2; exit 1")
    program.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path))
    result = run(app, "backup", str(tmp_path / "atrium.backup"))
    if on_sqlite(app):
        assert result.exit_code == 0
        return
    assert result.output.endswith("Error: pg_dump failed: pg_dump: error: why\n")


def test_backup_reports_missing_pg_dump(
    app: Flask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    result = run(app, "backup", str(tmp_path / "atrium.backup"))
    if on_sqlite(app):
        assert result.exit_code == 0
        return
    assert "pg_dump is missing" in result.output


@pytest.mark.not_on_citus(
    "A restore needs a database without the extension: tests/system/test_citus_nodes.py has it"
)
def test_backup_includes_uploaded_files(kept: tuple[Flask, Cast], tmp_path: Path) -> None:
    app, cast = kept
    builders.make_collection(cast.root, "papers", [{"name": "file", "type": "file"}])
    form = {"file": (BytesIO(b"the bytes"), "a.txt")}
    made = cast.alice.post("records/papers", data=form).json
    path = f"files/{made['file']['id']}"
    file = tmp_path / "atrium.backup"
    saved = run(app, "backup", str(file))
    assert f"{file}.files.tar" in saved.output
    assert cast.alice.delete(f"records/papers/{made['id']}").status_code == 204
    shutil.rmtree(tmp_path / "files")
    restored = run(app, "restore", str(file), "--replace")
    assert restored.exit_code == 0, restored.output
    assert cast.alice.get(path).data == b"the bytes"
    assert run(app, "backup", str(file)).exit_code == 1
    settings = replace(app.extensions["atrium.config"], files_url="s3://key:secret@bucket/x")
    app.extensions["atrium.config"] = settings
    elsewhere = run(app, "backup", str(tmp_path / "other.backup"))
    assert "NOT included" in elsewhere.output
    assert not (tmp_path / "other.backup.files.tar").exists()


def scratch_databases(app: Flask) -> set[str]:
    """Those that proofs of this database left on the server; on SQLite nothing."""
    if on_sqlite(app):
        return set()
    with closing(connected(app)) as connection, connection.cursor() as cursor:
        query = (
            "SELECT datname FROM pg_database WHERE datname LIKE current_database() || '_proof_%'"
        )
        cursor.execute(query)
        return {row[0] for row in cursor.fetchall()}


def test_backup_verify_writes_proof_by_restoring(kept: tuple[Flask, Cast], tmp_path: Path) -> None:
    app, cast = kept
    file = tmp_path / "atrium.backup"
    made = run(app, "backup", str(file), "--verify")
    assert made.exit_code == 0, made.output
    proof = json.loads((tmp_path / "atrium.backup.proof.json").read_text())
    assert proof["tables"]["col_posts"] == 1
    assert proof["tables"]["users"] >= 4
    assert proof["audit_entries"] > 0
    assert proof["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
    assert scratch_databases(app) == set()
    assert cast.alice.get("records/posts").json["items"][0]["title"] == "kept"
    file.unlink()
    again = run(app, "backup", str(file))
    assert again.exit_code != 0, "an old proof would stand beside a new backup"
    assert not file.exists()


def test_backup_verify_with_lost_rows_writes_no_proof(
    kept: tuple[Flask, Cast], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, _ = kept
    create = backups.create

    def lose(path: Path) -> Saved:
        saved = create(path)
        return replace(saved, rows={**saved.rows, "users": saved.rows["users"] + 1})

    def cut(path: Path) -> Saved:
        saved = create(path)
        path.write_bytes(path.read_bytes()[: path.stat().st_size * 9 // 10])
        return saved

    def empty(path: Path) -> Saved:
        saved = create(path)
        path.write_bytes(b"")
        return saved

    for number, change in enumerate((lose, cut, empty)):
        file = tmp_path / f"{number}.backup"
        monkeypatch.setattr(backups, "create", change)
        refused = run(app, "backup", str(file), "--verify")
        assert refused.exit_code != 0, refused.output
        assert not (tmp_path / f"{number}.backup.proof.json").exists()
    assert scratch_databases(app) == set()


def test_backup_verify_of_broken_audit_log_fails(kept: tuple[Flask, Cast], tmp_path: Path) -> None:
    app, cast = kept
    assert verified(cast.root)["valid"]  # seals the changes
    with app.app_context(), db.transaction() as session:
        session.execute(sa.text("UPDATE audit_heads SET checksum = '00'"))
    refused = run(app, "backup", str(tmp_path / "x.backup"), "--verify")
    assert refused.exit_code != 0
    assert "audit log is broken" in refused.output


def with_file(cast: Cast) -> str:
    """The key of an uploaded file that a record has."""
    builders.make_collection(cast.root, "papers", [{"name": "file", "type": "file"}])
    form = {"file": (BytesIO(b"the bytes"), "a.txt")}
    made = cast.alice.post("records/papers", data=form).json
    return f"{cast.alice.account_id}/{made['file']['id']}"


def flip(file: Path, text: bytes) -> None:
    """Alter a byte of a file, in a text that it holds, or in its middle."""
    content = bytearray(file.read_bytes())
    place = content.find(text)
    content[place if place >= 0 else len(content) // 2] ^= 1
    file.write_bytes(content)


def test_backup_verify_detects_altered_byte(
    kept: tuple[Flask, Cast], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, cast = kept
    with_file(cast)
    create = backups.create

    def alter_value(path: Path) -> Saved:
        saved = create(path)
        flip(path, b"kept")  # the title of a record, which no checksum of SQLite covers
        return saved

    def alter_file(path: Path) -> Saved:
        saved = create(path)
        flip(backups.archive_of(path), b"the bytes")
        return saved

    for number, change in enumerate((alter_value, alter_file)):
        file = tmp_path / f"{number}.backup"
        monkeypatch.setattr(backups, "create", change)
        refused = run(app, "backup", str(file), "--verify")
        assert refused.exit_code == 1
        assert "was altered since it was written" in refused.output
        assert not backups.proof_of(file).exists()


@pytest.mark.not_on_citus(
    "A restore needs a database without the extension: tests/system/test_citus_nodes.py has it"
)
def test_backup_that_was_altered_is_listed_and_not_restored(
    kept: tuple[Flask, Cast], tmp_path: Path
) -> None:
    app, cast = kept
    with_file(cast)
    file = tmp_path / "atrium.backup"
    assert run(app, "backup", str(file)).exit_code == 0
    assert run(app, "backup", "--list", str(file)).output == "not proved\n"
    for part in (file, backups.archive_of(file)):
        part.unlink()
    assert run(app, "backup", str(file), "--verify").exit_code == 0
    assert run(app, "backup", "--list", str(file)).output.startswith("proved on 20")
    for part in (backups.archive_of(file), file):
        before = part.read_bytes()
        flip(part, b"kept")
        for command in (["backup", "--list", str(file)], ["restore", str(file), "--replace"]):
            refused = run(app, *command)
            assert refused.exit_code == 1
            assert "was altered since it was proved" in refused.output
        part.write_bytes(before)
    assert cast.alice.get("records/posts").json["total"] == 1
    assert run(app, "restore", str(file), "--replace").exit_code == 0
    backups.proof_of(file).write_text("{}")
    assert "is not a proof" in run(app, "restore", str(file), "--replace").output
    for wrong in (["backup"], ["backup", "--verify"], ["backup", "--list", "--verify", "x"]):
        assert run(app, *wrong).exit_code == 2


@pytest.mark.long
def test_backup_verify_includes_uploaded_files(
    kept: tuple[Flask, Cast], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, cast = kept
    key = with_file(cast)
    stored, create = tmp_path / "files" / key, backups.create

    def proof(name: str) -> Any:
        return json.loads((tmp_path / f"{name}.proof.json").read_text())["files"]

    assert run(app, "backup", str(tmp_path / "a"), "--verify").exit_code == 0
    assert (proof("a")["count"], proof("a")["missing"]) == (1, 0)
    assert (
        proof("a")["sha256"] == hashlib.sha256((tmp_path / "a.files.tar").read_bytes()).hexdigest()
    )

    def without_file(path: Path) -> Saved:
        stored.rename(tmp_path / "away")
        saved = create(path)
        (tmp_path / "away").rename(stored)
        return saved

    def with_other(path: Path) -> Saved:
        stored.write_bytes(b"other bytes")
        saved = create(path)
        stored.write_bytes(b"the bytes")
        return saved

    for name, change in (("b", without_file), ("c", with_other)):
        monkeypatch.setattr(backups, "create", change)
        refused = run(app, "backup", str(tmp_path / name), "--verify")
        assert refused.exit_code == 1
        assert f"the uploaded file {key} is not in the archive as it is stored" in refused.output

    def removed_meanwhile(path: Path) -> Saved:
        saved = without_file(path)
        with db.transaction() as session:
            session.execute(sa.text("UPDATE files SET removed_at = created_at"))
        return saved

    monkeypatch.setattr(backups, "create", removed_meanwhile)
    assert run(app, "backup", str(tmp_path / "d"), "--verify").exit_code == 0
    assert (proof("d")["count"], proof("d")["missing"]) == (0, 0)
    with app.app_context(), db.transaction() as session:
        session.execute(sa.text("UPDATE files SET removed_at = NULL"))
    stored.unlink()  # which no backup can repair
    monkeypatch.setattr(backups, "create", create)
    told = run(app, "backup", str(tmp_path / "e"), "--verify")
    assert told.exit_code == 0, told.output
    assert "1 uploaded files are missing in the service, too" in told.output
    assert (proof("e")["count"], proof("e")["missing"]) == (0, 1)


@pytest.mark.long
@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_backup_verify_drops_abandoned_scratch_databases(
    kept: tuple[Flask, Cast], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, _ = kept
    count, seen = backup_proofs._count, set[str]()

    def prove_another(rows: Mapping[str, int]) -> None:
        count(rows)
        if not seen:
            seen.update(scratch_databases(app))
            another = run(app, "backup", str(tmp_path / "b"), "--verify")
            assert another.exit_code == 0, another.output
            assert scratch_databases(app) == seen

    with closing(connected(app)) as connection:
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute("SELECT current_database()")
            name = cursor.fetchone()[0]
            abandoned = f"{_prefix(name)}0123456789ab"
            used = f"{name}_proof_of_something_else"
            for other in (abandoned, used):
                cursor.execute(f'CREATE DATABASE "{other}"')
    monkeypatch.setattr(backup_proofs, "_count", prove_another)
    made = run(app, "backup", str(tmp_path / "a"), "--verify")
    assert made.exit_code == 0, made.output
    assert len(seen) == 2
    assert abandoned not in seen
    assert scratch_databases(app) == {used}
    with closing(connected(app)) as connection:
        connection.autocommit = True
        connection.cursor().execute(f'DROP DATABASE "{used}"')


def test_backup_verify_counts_rows_of_all_accounts(
    kept: tuple[Flask, Cast], tmp_path: Path
) -> None:
    app, cast = kept
    file = tmp_path / "atrium.backup"
    with app.app_context():
        users = db.connection().scalar(sa.text("SELECT count(*) FROM users"))
        for scope in (tenancy.NO_ACCOUNT, cast.bob.account_id):
            with tenancy.scoped_to(scope):
                proof = backup_proofs.prove(file, backups.create(file))
            assert proof["tables"]["users"] == users > 3
            assert proof["tables"]["col_posts"] == 1
            for part in (file, backups.proof_of(file)):
                part.unlink()


@pytest.mark.not_on_citus("it changes tables that tests share there")
def test_backup_verify_works_before_upgrade(kept: tuple[Flask, Cast], tmp_path: Path) -> None:
    app, _ = kept
    with app.app_context(), tenancy.as_owner(), db.transaction() as session:
        session.execute(sa.text("DROP TABLE backup_runs"))
    made = run(app, "backup", str(tmp_path / "atrium.backup"), "--verify")
    assert made.exit_code == 0, made.output
