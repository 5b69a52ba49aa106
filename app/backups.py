"""`flask backup` and `flask restore`: the whole database, to a file and back.

On SQLite by its own online copy, on PostgreSQL by `pg_dump` and `pg_restore`, beside a running
service. Keys are not in the file: what `SERVICE_ENCRYPTION_KEY` encrypts is worth nothing without.
"""

from __future__ import annotations

import re
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import sqlalchemy as sa

from app import config, db, row_security, tenancy

PAGES_AT_ONCE = 1000
EMPTIED = "DROP SCHEMA public CASCADE; CREATE SCHEMA public"
# What names roles, which another server may not have; `row_security` makes it anew.
OF_ROLES = re.compile(r"\d+; \d+ \d+ (ACL|DEFAULT ACL|POLICY|ROW SECURITY) ")
LOCK_TIMEOUT = "SET LOCAL lock_timeout = '30s'"


class BackupError(Exception):
    """What keeps a backup from being made or read, in words."""


def make(path: Path) -> None:
    """Write the database into a new file. Raises BackupError."""
    if path.exists():
        raise BackupError(f"{path} is there already")
    draft = path.with_name(f"{path.name}.part")
    try:
        draft.touch(mode=0o600)
        if _on_sqlite():
            with closing(sqlite3.connect(draft)) as copy, closing(_sqlite()) as source:
                source.backup(copy, pages=PAGES_AT_ONCE)
        else:
            _run("pg_dump", "--format=custom", "--no-owner", f"--file={draft}", _address())
        draft.rename(path)
    except (OSError, sqlite3.Error) as error:
        raise BackupError(f"{path} cannot be written: {error}") from error
    finally:
        draft.unlink(missing_ok=True)


def restore(path: Path, *, replacing: bool) -> None:
    """Make the database what a file says. Raises BackupError, also for one that is not empty."""
    if not path.is_file():
        raise BackupError(f"{path} is no file")
    if sa.inspect(db.db.engine).get_table_names() and not replacing:
        raise BackupError("the database is not empty: --replace overwrites it")
    (_restore_sqlite if _on_sqlite() else _restore_postgres)(path)


def _restore_sqlite(path: Path) -> None:
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as source:
            tables = {row[0] for row in source.execute("SELECT name FROM sqlite_master")}
            sound = source.execute("PRAGMA integrity_check(1)").fetchone()[0] == "ok"
            if "alembic_version" not in tables or not sound:
                raise BackupError(f"{path} is no backup of SQLite, or a broken one")
            with closing(_sqlite()) as target:
                source.backup(target, pages=PAGES_AT_ONCE)
    except sqlite3.Error as error:
        raise BackupError(f"{path} cannot be restored: {error}") from error


def _restore_postgres(path: Path) -> None:
    listed = _run("pg_restore", "--list", str(path))  # before anything is dropped
    with tenancy.as_owner(), db.transaction() as session:
        session.execute(sa.text(LOCK_TIMEOUT))
        session.execute(sa.text(EMPTIED))
    db.db.engine.dispose()
    with tempfile.NamedTemporaryFile("w", suffix=".list") as wanted:
        wanted.write("\n".join(line for line in listed.splitlines() if not OF_ROLES.match(line)))
        wanted.flush()
        options = ("--no-owner", "--single-transaction", "--exit-on-error")
        contents = (f"--use-list={wanted.name}", f"--dbname={_address()}", str(path))
        _run("pg_restore", *options, *contents)
    if config.current().row_security_enabled:
        row_security.install(db.db.engine)


def _on_sqlite() -> bool:
    return db.db.engine.dialect.name == "sqlite"


def _sqlite() -> sqlite3.Connection:
    return sqlite3.connect(str(db.db.engine.url.database), timeout=db.SQLITE_BUSY_SECONDS)


def _address() -> str:
    url = db.db.engine.url.set(drivername="postgresql", password=None)
    return url.render_as_string(hide_password=False)


def _run(program: str, *arguments: str) -> str:
    found = shutil.which(program)
    if found is None:
        raise BackupError(f"{program} is missing: install PostgreSQL's client programs")
    # Not among the arguments, which every user of the machine sees.
    env = config.environment(PGPASSWORD=db.db.engine.url.password or "")
    done = subprocess.run([found, *arguments], env=env, capture_output=True, text=True)  # noqa: S603
    if done.returncode:
        raise BackupError(f"{program} failed: {_last(done.stderr.splitlines())}")
    return done.stdout


def _last(lines: Sequence[str]) -> str:
    return lines[-1] if lines else "it says nothing"
