"""`flask backup` and `flask restore`: the whole database, to a file and back.

On SQLite by its own online copy, on PostgreSQL by `pg_dump`, `pg_restore` and `psql`. A backup is
made beside a running service. A restore is one transaction: one that fails or is killed changes
nothing. Keys are not in the file: what `SERVICE_ENCRYPTION_KEY` encrypts is worth nothing without.
"""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import IO, Any

import sqlalchemy as sa

from app import config
from app.db import engine, row_security, sqlite_driver
from app.errors import AppError

PAGES_AT_ONCE = 1000
# What tells our backup from another application's, which may know Alembic, too.
OURS = {"alembic_version", "accounts", "users", "collections"}
CONTENTS = re.compile(r"^\d+; \d+ \d+ TABLE DATA public (\S+) ", re.MULTILINE)
LOCK_SECONDS = 30
EMPTIED = """
BEGIN;
SET LOCAL lock_timeout = {milliseconds};
SET LOCAL client_min_messages = error;
DROP SCHEMA IF EXISTS public CASCADE;
CREATE SCHEMA public;
"""
LOCKED = "55P03"
IN_USE = "somebody works with the database: stop web and worker processes first"
KEPT_LOCKED = "due to statement timeout"
IN_CHANGE = "somebody keeps a table locked: look for a change of the schema that hangs"
# What names roles, which another server may not have; `row_security` makes it anew.
OF_ROLES = re.compile(r"\d+; \d+ \d+ (ACL|DEFAULT ACL|POLICY|ROW SECURITY) ")


class BackupError(AppError):
    """What keeps a backup from being made or read, in words."""


def create(path: Path) -> None:
    """Write the database into a new file. Raises BackupError."""
    try:
        if path.exists():
            raise BackupError(f"{path} is there already")
        if not _tables() >= OURS:
            raise BackupError("the database holds nothing of Atrium: see SERVICE_DATABASE_URL")
        number, name = tempfile.mkstemp(".part", f"{path.name}.", path.parent)
        os.close(number)
        draft = Path(name)
        try:
            _write(draft)
            draft.rename(path)
        finally:
            draft.unlink(missing_ok=True)
    except (OSError, sqlite3.Error) as error:
        raise BackupError(f"{path} cannot be written: {error}") from error


def _write(draft: Path) -> None:
    if _on_sqlite():
        with closing(sqlite3.connect(draft)) as copy, closing(_sqlite()) as source:
            # One snapshot: the copy would begin anew with every change that others commit.
            source.execute("BEGIN")
            source.execute("SELECT name FROM sqlite_master").fetchone()
            source.backup(copy, pages=PAGES_AT_ONCE)
    else:
        patience = f"--lock-wait-timeout={_lock_milliseconds()}"
        _run("pg_dump", "--format=custom", "--no-owner", patience, f"--file={draft}", _address())


def restore(path: Path, *, replacing: bool) -> None:
    """Make the database what a file says. Raises BackupError, also for one that is not empty."""
    try:
        path.open("rb").close()
    except OSError as error:
        raise BackupError(f"{path} cannot be read: {error.strerror}") from error
    if _tables() and not replacing:
        raise BackupError("the database is not empty: --replace overwrites it")
    (_restore_sqlite if _on_sqlite() else _restore_postgres)(path)


def _restore_sqlite(path: Path) -> None:
    try:
        with closing(sqlite3.connect(_only_read(path.resolve()), uri=True)) as source:
            tables = {row[0] for row in source.execute("SELECT name FROM sqlite_master")}
            sound = source.execute("PRAGMA integrity_check(1)").fetchone()[0] == "ok"
            if not tables >= OURS or not sound:
                raise BackupError(f"{path} is no backup of Atrium on SQLite, or a broken one")
            with closing(_sqlite()) as target:
                target.execute("BEGIN IMMEDIATE")  # the copy itself would wait without end
                target.rollback()
                source.backup(target, pages=PAGES_AT_ONCE)
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY:
            raise BackupError(IN_USE) from error
        raise BackupError(f"{path} cannot be restored: {error}") from error


def _only_read(path: Path) -> str:
    # SQLite makes files beside the one it reads, which a folder may not allow, unless told that
    # nobody writes it. Then it reads no log either, which a copy of a database may have.
    log = path.with_name(f"{path.name}-wal")
    whole = not log.exists() or not log.stat().st_size
    return f"{path.as_uri()}?mode=ro{'&immutable=1' if whole else ''}"


def _restore_postgres(path: Path) -> None:
    listed = _run("pg_restore", "--list", str(path))
    if not set(CONTENTS.findall(listed)) >= OURS:
        raise BackupError(f"{path} is no backup of Atrium on PostgreSQL")
    with tempfile.NamedTemporaryFile("w", suffix=".list") as wanted:
        wanted.write("\n".join(line for line in listed.splitlines() if not OF_ROLES.match(line)))
        wanted.flush()
        _replace("--no-owner", f"--use-list={wanted.name}", str(path))
    engine.current_engine().dispose()
    if config.current().row_security_enabled:
        row_security.install(engine.current_engine())


def _replace(*of_file: str) -> None:
    options = ("--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", "--set=VERBOSITY=verbose")
    command, env = _program("psql", *options, f"--dbname={_address()}", "--file=-")
    pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
    with tempfile.TemporaryFile("w+", errors="replace") as told:
        with subprocess.Popen(  # noqa: S603
            command, env=env, bufsize=0, stdin=pipe, stdout=nowhere, stderr=told
        ) as psql:
            broken = _dictate(psql.stdin, of_file)
        told.seek(0)
        _check("psql", psql.returncode, told.read())
    if broken:
        raise broken


def _dictate(psql: Any, of_file: Sequence[str]) -> BackupError | None:
    """Say all in one transaction, which is rolled back where its COMMIT is not said."""
    try:
        psql.write(EMPTIED.format(milliseconds=_lock_milliseconds()).encode())
        _run("pg_restore", "--file=-", *of_file, output=psql)
        psql.write(b"COMMIT;\n")
    except BackupError as error:
        return error
    except BrokenPipeError:
        return BackupError("psql has ended too soon")
    return None


def _lock_milliseconds() -> int:
    return int(LOCK_SECONDS * 1000)


def _tables() -> set[str]:
    return set(sa.inspect(engine.current_engine()).get_table_names())


def _on_sqlite() -> bool:
    return engine.current_engine().dialect.name == "sqlite"


def _sqlite() -> sqlite3.Connection:
    return sqlite3.connect(
        str(engine.current_engine().url.database), timeout=sqlite_driver.BUSY_SECONDS
    )


def _address() -> str:
    url = engine.current_engine().url.set(drivername="postgresql", password=None)
    return url.render_as_string(hide_password=False)


def _run(name: str, *arguments: str, output: IO[bytes] | int = subprocess.PIPE) -> str:
    command, env = _program(name, *arguments)
    done = subprocess.run(  # noqa: S603
        command, env=env, stdout=output, stderr=subprocess.PIPE, text=True, errors="replace"
    )
    _check(name, done.returncode, done.stderr)
    return done.stdout


def _program(name: str, *arguments: str) -> tuple[list[str], dict[str, str]]:
    """The command, and its environment."""
    found = shutil.which(name)
    if found is None:
        raise BackupError(f"{name} is missing: install PostgreSQL's client programs")
    # The password is not among the arguments, which every user of the machine sees.
    password = engine.current_engine().url.password or ""
    return [found, *arguments], config.child_environment(PGPASSWORD=password, LC_ALL="C")


def _check(name: str, status: int, told: str) -> None:
    if status and LOCKED in told:
        raise BackupError(IN_USE)
    if status and KEPT_LOCKED in told:
        raise BackupError(IN_CHANGE)
    if status:
        raise BackupError(f"{name} failed: {_reason(told.splitlines())}")


def _reason(lines: Sequence[str]) -> str:
    """The first error: what follows tells of it, or follows from it."""
    errors = [line for line in lines if "error:" in line.lower()]
    return (errors or [*lines[-1:], "it says nothing"])[0]
