"""Commands that cannot do their work say why, in words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import Result
from flask import Flask

from app import create_app
from tests.conftest import settings_for
from tests.project import on_linux

PASSWORD = "Correct-Horse-1-battery"


@pytest.fixture(scope="module")
def without_database(tmp_path_factory: pytest.TempPathFactory) -> Flask:
    """An application whose database is away."""
    settings = settings_for("sqlite", tmp_path_factory.mktemp("without"))
    return create_app(replace(settings, database_url="postgresql+psycopg2://x@127.0.0.1:1/none"))


def run(app: Flask, *command: str) -> Result:
    result = app.test_cli_runner().invoke(args=list(command))
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result


COMMANDS = [
    ["setup"],
    ["db", "upgrade"],
    ["db", "current"],
    ["audit", "verify"],
    ["audit", "checkpoints"],
    ["reencrypt"],
    ["isolation-check"],
    ["create-superadmin", "a@system.example", "--password", PASSWORD],
    ["restore", __file__],
    ["export"],
]
NEEDING_TABLES = ("audit", "reencrypt", "isolation-check", "create-superadmin", "export")


@pytest.mark.parametrize("command", COMMANDS)
def test_command_without_database_names_error(without_database: Flask, command: list[str]) -> None:
    told = run(without_database, *command)
    assert told.exit_code == 1
    assert "Error: The database cannot be used: " in told.output
    assert "Connection refused" in told.output
    assert "doctor" in told.output


@pytest.fixture(scope="module")
def with_another_file(tmp_path_factory: pytest.TempPathFactory) -> Flask:
    """An application whose database file is something else."""
    folder = tmp_path_factory.mktemp("another")
    app = create_app(settings_for("sqlite", folder))
    (folder / "atrium.db").write_text("a diary, and no database")
    return app


@pytest.mark.parametrize("command", COMMANDS)
def test_command_with_foreign_database_file_names_error(
    with_another_file: Flask, command: list[str]
) -> None:
    told = run(with_another_file, *command)
    assert told.exit_code == 1
    assert "Error: The database cannot be used: file is not a database" in told.output


def test_request_with_foreign_database_file_is_503(with_another_file: Flask) -> None:
    app = with_another_file
    assert app.test_client().get("/ready").status_code == 503
    signing_in = {"account": "acme", "email": "a@acme.example", "password": PASSWORD}
    assert app.test_client().post("/api/v1/auth/login", json=signing_in).status_code == 503


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def without_tables(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Flask:
    """An application whose database no migration has touched."""
    return create_app(settings_for(request.param, tmp_path_factory.mktemp("empty")))


@pytest.mark.parametrize("command", [one for one in COMMANDS if one[0] in NEEDING_TABLES])
def test_command_without_migrations_names_error(without_tables: Flask, command: list[str]) -> None:
    told = run(without_tables, *command)
    assert told.exit_code == 1
    assert "Error: The database cannot be used: " in told.output
    assert "no such table" in told.output or "does not exist" in told.output


def test_command_with_unwritable_target_names_error(
    without_database: Flask, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    told = run(without_database, "revisions", "export", str(tmp_path / "file" / "in"))
    assert told.exit_code == 1
    assert f"Error: {tmp_path}/file/in" in told.output
    assert "Not a directory" in told.output


@on_linux  # /dev/full
def test_command_with_full_disk_names_error(without_database: Flask, tmp_path: Path) -> None:
    (tmp_path / "alembic.ini").symlink_to("/dev/full")
    told = run(without_database, "revisions", "export", str(tmp_path))
    assert told.exit_code == 1
    assert "Error: No space left on device" in told.output


def test_command_with_unopenable_database_names_its_file(tmp_path: Path) -> None:
    file = tmp_path / "nowhere" / "atrium.db"
    app = create_app(replace(settings_for("sqlite", tmp_path), database_url=f"sqlite:///{file}"))
    for command in ("setup", "doctor"):
        told = run(app, command)
        assert told.exit_code == 1
        assert f"unable to open database file: {file}" in told.output
