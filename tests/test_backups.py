"""What was backed up comes back whole, and nothing is overwritten unasked."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import Result
from flask import Flask

from app import db
from tests import builders
from tests.builders import Cast
from tests.conftest import make_app, settings_for


@pytest.fixture
def kept(database: str, tmp_path: Path) -> Iterator[tuple[Flask, Cast]]:
    """An instance of its own, with a record."""
    app = make_app(settings_for(database, tmp_path))
    cast = builders.make_cast(app)
    builders.make_collection(cast.root)
    builders.make_record(cast.alice, title="kept")
    yield app, cast
    with app.app_context():
        db.db.session.remove()
        db.db.engine.dispose()


def run(app: Flask, *args: str) -> Result:
    return app.test_cli_runner().invoke(args=list(args))


def test_a_restore_is_what_was_backed_up(kept: tuple[Flask, Cast], tmp_path: Path) -> None:
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


def test_what_is_no_backup_harms_nothing(kept: tuple[Flask, Cast], tmp_path: Path) -> None:
    app, cast = kept
    for name, content in (("empty", b""), ("text", b"SELECT 1;"), ("noise", os.urandom(9000))):
        (tmp_path / name).write_bytes(content)
        result = run(app, "restore", str(tmp_path / name), "--replace")
        assert result.exit_code == 1, name
        assert result.output.strip().splitlines()[-1].startswith("Error: ")
    assert run(app, "restore", str(tmp_path / "none"), "--replace").exit_code == 1
    assert run(app, "backup", str(tmp_path / "text")).exit_code == 1
    assert (tmp_path / "text").read_bytes() == b"SELECT 1;"
    assert cast.alice.get("records/posts").json["total"] == 1
    assert not list(tmp_path.glob("*.part"))


def test_a_missing_program_is_named(
    kept: tuple[Flask, Cast], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, _ = kept
    monkeypatch.setenv("PATH", str(tmp_path))
    result = run(app, "backup", str(tmp_path / "atrium.backup"))
    with app.app_context():
        if db.db.engine.dialect.name == "sqlite":
            assert result.exit_code == 0
            return
    assert "pg_dump is missing" in result.output
