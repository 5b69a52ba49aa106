"""What is no backup of this application."""

from __future__ import annotations

import os
import secrets
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import psycopg2
import pytest
from flask import Flask

from tests import services
from tests.builders import Cast
from tests.test_backups import app, kept, on_sqlite, run, tables  # noqa: F401


def foreign(app: Flask, file: Path) -> Path:
    """A file in the form of a backup, of another application that Alembic migrates, too."""
    statements = "CREATE TABLE alembic_version (version_num text); CREATE TABLE users (id text);"
    if on_sqlite(app):
        with closing(sqlite3.connect(file)) as other:
            other.executescript(statements)
        return file
    url = services.Postgres().create_database(f"test_{secrets.token_hex(6)}")
    with closing(psycopg2.connect(url)) as other, other, other.cursor() as cursor:
        cursor.execute(statements)
    subprocess.run(["pg_dump", "--format=custom", f"--file={file}", url], check=True)
    return file


def truncated(file: Path) -> Path:
    """Nine tenths of a file."""
    part = file.with_suffix(".truncated")
    part.write_bytes(file.read_bytes()[: file.stat().st_size * 9 // 10])
    return part


@pytest.mark.not_on_citus(
    "A restore needs a database without the extension: tests/system/test_citus_nodes.py has it"
)
def test_backup_command_refuses_foreign_files_and_changes_nothing(
    kept: tuple[Flask, Cast], tmp_path: Path
) -> None:
    app, cast = kept
    before = tables(app)
    assert run(app, "backup", str(tmp_path / "whole")).exit_code == 0
    for name, content in (("empty", b""), ("text", b"SELECT 1;"), ("noise", os.urandom(9000))):
        (tmp_path / name).write_bytes(content)
    broken, others = truncated(tmp_path / "whole"), foreign(app, tmp_path / "foreign")
    for file in (*(tmp_path / name for name in ("empty", "text", "noise")), broken, others):
        result = run(app, "restore", str(file), "--replace")
        assert result.exit_code == 1, file
        assert result.output.strip().splitlines()[-1].startswith("Error: ")
    assert run(app, "restore", str(tmp_path / "none"), "--replace").exit_code == 1
    assert run(app, "backup", str(tmp_path / "text")).exit_code == 1
    assert (tmp_path / "text").read_bytes() == b"SELECT 1;"
    assert tables(app) == before
    assert cast.alice.get("records/posts").json["total"] == 1
    assert not list(tmp_path.glob("*.part"))
