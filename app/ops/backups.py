"""`flask backup` and `flask restore`: the whole database, to a file and back; files beside it.

Uses SQLite's online backup, or `pg_dump`, `pg_restore` and `psql`. The service may run during a
backup. A restore is one transaction: if it fails or is killed, nothing changes. The file holds no
keys: without `SERVICE_ENCRYPTION_KEY` its encrypted secrets cannot be read.

The folder of uploaded files goes to `<file>.files.tar`, after the database: what the database names
is there, as bytes are removed only after the commit that lets go of them. A bucket is left out.
"""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import sqlalchemy as sa

from app import config
from app.db import engine, row_security, sqlite_driver
from app.errors import AppError
from app.files import storage

PAGES_PER_STEP = 1000
# Tables that identify a backup of Atrium; others may have alembic_version, too.
REQUIRED_TABLES = {"alembic_version", "accounts", "users", "collections"}
TABLE_DATA_LINE = re.compile(r"^\d+; \d+ \d+ TABLE DATA public (\S+) ", re.MULTILINE)
LOCK_SECONDS = 30
EMPTY_SCHEMA_SQL = """
BEGIN;
SET LOCAL lock_timeout = {milliseconds};
SET LOCAL client_min_messages = error;
DROP SCHEMA IF EXISTS public CASCADE;
CREATE SCHEMA public;
"""
FILE_KEY = re.compile(r"[0-9a-f-]{36}/[0-9a-f-]{36}")
LOCK_NOT_AVAILABLE = "55P03"
IN_USE = "the database is in use: stop web and worker processes first"
TIMED_OUT = "due to statement timeout"
TABLE_LOCKED = "a table is locked: look for a schema change that hangs"
# Entries that name roles, which another server may lack; `row_security` recreates them.
ROLE_LINE = re.compile(r"\d+; \d+ \d+ (ACL|DEFAULT ACL|POLICY|ROW SECURITY) ")


class BackupError(AppError):
    """Raised if a backup cannot be written or restored."""


def create(path: Path) -> None:
    """Write the database into a new file, and uploaded files beside it. Raises BackupError."""
    try:
        for new in (path, archive_of(path)):
            if new.exists():
                raise BackupError(f"{new} exists already: choose another file")
        if not _tables() >= REQUIRED_TABLES:
            raise BackupError("the database has no tables of Atrium: check SERVICE_DATABASE_URL")
        with _draft(path) as draft:
            _write(draft)
            _write_files(archive_of(path))
    except (OSError, sqlite3.Error) as error:
        raise BackupError(f"{path} cannot be written: {error}") from error


def archive_of(path: Path) -> Path:
    """The archive of uploaded files that belongs to a backup."""
    return path.with_name(f"{path.name}.files.tar")


def has_files(path: Path) -> bool:
    """Whether a backup has an archive of uploaded files."""
    return archive_of(path).exists()


def _write_files(archive: Path) -> None:
    place = storage.current()
    if not isinstance(place, storage.Folder) or not place.root.exists():
        return
    with _draft(archive) as draft, tarfile.open(draft, "w") as target:
        for blob in place.blobs():
            with suppress(FileNotFoundError):  # removed meanwhile: nothing names it any more
                target.add(place.root / blob.key, blob.key, recursive=False)


def _restore_files(path: Path) -> None:
    place = storage.current()
    if not has_files(path):
        return
    if not isinstance(place, storage.Folder):
        raise BackupError(f"{archive_of(path)} is for a folder, but SERVICE_FILES_URL is set")
    try:
        with tarfile.open(archive_of(path)) as source:
            for member in source:
                if member.isfile() and FILE_KEY.fullmatch(member.name):
                    with closing(source.extractfile(member)) as blob:  # type: ignore[type-var]
                        storage.put_stream(member.name, blob)  # type: ignore[arg-type]
    except tarfile.TarError as error:
        raise BackupError(f"{archive_of(path)} cannot be read: {error}") from error


@contextmanager
def _draft(path: Path) -> Iterator[Path]:
    """A new file that gets its name at the end of the block."""
    number, name = tempfile.mkstemp(".part", f"{path.name}.", path.parent)
    os.close(number)
    try:
        yield Path(name)
        Path(name).rename(path)
    finally:
        Path(name).unlink(missing_ok=True)


def _write(draft: Path) -> None:
    if _on_sqlite():
        with closing(sqlite3.connect(draft)) as copy, closing(_sqlite()) as source:
            # One snapshot: otherwise the copy would restart with every commit.
            source.execute("BEGIN")
            source.execute("SELECT name FROM sqlite_master").fetchone()
            source.backup(copy, pages=PAGES_PER_STEP)
    else:
        lock_timeout = f"--lock-wait-timeout={_lock_milliseconds()}"
        # `row_security` recreates the views.
        what = ("--format=custom", "--no-owner", f"--exclude-schema={row_security.VIEWS}")
        _run("pg_dump", *what, lock_timeout, f"--file={draft}", _address())


def restore(path: Path, *, replacing: bool) -> None:
    """Replace the database by a backup. Raises BackupError, also if the database is not empty."""
    try:
        path.open("rb").close()
    except OSError as error:
        raise BackupError(f"{path} cannot be read: {error.strerror}") from error
    if _tables() and not replacing:
        raise BackupError("the database is not empty: use --replace to overwrite it")
    _restore_files(path)  # first: a restored record must not name what is not there
    (_restore_sqlite if _on_sqlite() else _restore_postgres)(path)


def _restore_sqlite(path: Path) -> None:
    try:
        with closing(sqlite3.connect(_read_only_uri(path.resolve()), uri=True)) as source:
            tables = {row[0] for row in source.execute("SELECT name FROM sqlite_master")}
            sound = source.execute("PRAGMA integrity_check(1)").fetchone()[0] == "ok"
            if not tables >= REQUIRED_TABLES or not sound:
                raise BackupError(f"{path} is not a valid SQLite backup of Atrium")
            with closing(_sqlite()) as target:
                target.execute("BEGIN IMMEDIATE")  # the copy itself has no timeout
                target.rollback()
                source.backup(target, pages=PAGES_PER_STEP)
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY:
            raise BackupError(IN_USE) from error
        raise BackupError(f"{path} cannot be restored: {error}") from error


def _read_only_uri(path: Path) -> str:
    # With `immutable` SQLite creates no files in the folder, which may be read-only, but it also
    # ignores the write-ahead log, which a copy of a database may have.
    log = path.with_name(f"{path.name}-wal")
    whole = not log.exists() or not log.stat().st_size
    return f"{path.as_uri()}?mode=ro{'&immutable=1' if whole else ''}"


def _restore_postgres(path: Path) -> None:
    contents = _run("pg_restore", "--list", str(path))
    if not set(TABLE_DATA_LINE.findall(contents)) >= REQUIRED_TABLES:
        raise BackupError(f"{path} is not a PostgreSQL backup of Atrium")
    with tempfile.NamedTemporaryFile("w", suffix=".list") as use_list:
        use_list.write(
            "\n".join(line for line in contents.splitlines() if not ROLE_LINE.match(line))
        )
        use_list.flush()
        _replace("--no-owner", f"--use-list={use_list.name}", str(path))
    engine.current_engine().dispose()
    if config.current().row_security_enabled:
        row_security.install(engine.current_engine())


def _replace(*archive_options: str) -> None:
    options = ("--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", "--set=VERBOSITY=verbose")
    command, env = _program("psql", *options, f"--dbname={_address()}", "--file=-")
    pipe, devnull = subprocess.PIPE, subprocess.DEVNULL
    with tempfile.TemporaryFile("w+", errors="replace") as stderr:
        with subprocess.Popen(  # noqa: S603
            command, env=env, bufsize=0, stdin=pipe, stdout=devnull, stderr=stderr
        ) as psql:
            error = _send_to_psql(psql.stdin, archive_options)
        stderr.seek(0)
        _check("psql", psql.returncode, stderr.read())
    if error:
        raise error


def _send_to_psql(psql: Any, archive_options: Sequence[str]) -> BackupError | None:
    """Feed psql one transaction, which rolls back unless COMMIT arrives."""
    try:
        psql.write(EMPTY_SCHEMA_SQL.format(milliseconds=_lock_milliseconds()).encode())
        _run("pg_restore", "--file=-", *archive_options, output=psql)
        psql.write(b"COMMIT;\n")
    except BackupError as error:
        return error
    except BrokenPipeError:
        return BackupError("psql exited early")
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
    completed = subprocess.run(  # noqa: S603
        command, env=env, stdout=output, stderr=subprocess.PIPE, text=True, errors="replace"
    )
    _check(name, completed.returncode, completed.stderr)
    return completed.stdout


def _program(name: str, *arguments: str) -> tuple[list[str], dict[str, str]]:
    """Return the command and its environment."""
    executable = shutil.which(name)
    if executable is None:
        raise BackupError(f"{name} is missing: install PostgreSQL's client programs")
    # The password is no argument, as every user of the machine can see those.
    password = engine.current_engine().url.password or ""
    return [executable, *arguments], config.child_environment(PGPASSWORD=password, LC_ALL="C")


def _check(name: str, status: int, stderr: str) -> None:
    if status and LOCK_NOT_AVAILABLE in stderr:
        raise BackupError(IN_USE)
    if status and TIMED_OUT in stderr:
        raise BackupError(TABLE_LOCKED)
    if status:
        raise BackupError(f"{name} failed: {_reason(stderr.splitlines())}")


def _reason(lines: Sequence[str]) -> str:
    """Return the first error; later ones are its consequences."""
    errors = [line for line in lines if "error:" in line.lower()]
    return (errors or [*lines[-1:], "no error message"])[0]
