"""`bin/atrium backup` and `restore`: the whole database, to a file and back; files beside it.

Uses SQLite's online backup, or `pg_dump`, `pg_restore` and `psql`. The service may run during a
backup. A restore is one transaction: if it fails or is killed, nothing changes. The file holds no
keys: without `SERVICE_ENCRYPTION_KEY` its encrypted secrets cannot be read.

The folder of uploaded files goes to `<file>.files.tar`, after the database: what the database names
is there, as bytes are removed only after the commit that lets go of them. A bucket is left out.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sqlite3
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from app import config
from app.audit.models import AuditChange
from app.db import citus, engine, row_security, sqlite_driver
from app.errors import AppError
from app.files import storage
from app.ops import command
from app.realtime.feed import changes

PAGES_PER_STEP = 1000
CHUNK = 2**20
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
EXPIRE_SQL = """
DO $$ BEGIN
  IF EXISTS (
    SELECT FROM information_schema.columns
    WHERE table_schema = 'public' AND table_name = 'audit_heads' AND column_name = 'expired_change'
  ) THEN
    IF to_regclass('public.audit_pending') IS NOT NULL THEN
      INSERT INTO public.audit_heads (account_id, last_id, checksum, checkpoint_id, changed_at)
      SELECT account_id, 0, repeat('0', 64), 0, max(occurred_at) FROM public.audit_pending
      GROUP BY account_id ON CONFLICT DO NOTHING;
    END IF;
    UPDATE public.audit_heads SET expired_change = {first_change};
    PERFORM setval('public.audit_log_ids', {first_change});
  END IF;
END $$;
"""
# Of accounts that have none yet, as none of their changes is sealed.
NEW_HEADS = (
    "INSERT INTO audit_heads (account_id, last_id, checksum, checkpoint_id, changed_at)"
    " SELECT account_id, 0, printf('%064d', 0), 0, max(occurred_at) FROM audit_pending"
    " WHERE true GROUP BY account_id ON CONFLICT DO NOTHING"
)
FILE_KEY = re.compile(r"[0-9a-f-]{36}/[0-9a-f-]{36}")
# Entries that name roles or extensions, which another server may lack; `row_security` recreates the
# former, and none of our tables needs the latter.
LEFT_OUT_LINE = re.compile(
    r"\d+; \d+ \d+ (ACL|DEFAULT ACL|POLICY|ROW SECURITY|EXTENSION|COMMENT - EXTENSION) "
)
HAS_CITUS = (
    "this database has the extension citus, parts of which a restore would drop: restore into a"
    " database without it, then create it and run bin/atrium shard (docs/scaling.md)"
)
HIDDEN_ROWS = (
    "row-level security of the sharded database hides rows from this login: back up as a superuser,"
    " or as a role with BYPASSRLS (docs/scaling.md)"
)
# What pg_dump and pg_restore say of each table with --verbose.
TABLE_PROCESSED = re.compile(r": (dumping contents of|processing data for) table ")
LOCK_NOT_AVAILABLE = "55P03"
IN_USE = "the database is in use: stop web and worker processes first"
TIMED_OUT = "due to statement timeout"
TABLE_LOCKED = "a table is locked: look for a schema change that hangs"


@dataclass(frozen=True)
class Saved:
    """A written backup: the rows of each table in its snapshot, and checksums of its files."""

    rows: Mapping[str, int]
    sha256: str
    files_sha256: str | None
    """None without an archive of uploaded files."""


def create(path: Path) -> Saved:
    """Write the database into a new file, and uploaded files beside it. Raises BackupError."""
    try:
        for new in (path, archive_of(path), proof_of(path)):
            if new.exists():
                raise BackupError(f"{new} exists already: choose another file")
        if not _tables() >= REQUIRED_TABLES:
            raise BackupError("the database has no tables of Atrium: check SERVICE_DATABASE_URL")
        with draft_of(path) as draft:
            rows = _write(draft)
            sha256 = checksum(draft)
            return Saved(rows, sha256, _write_files(archive_of(path)))
    except (OSError, sqlite3.Error) as error:
        raise BackupError(f"{path} cannot be written: {error}") from error


def archive_of(path: Path) -> Path:
    """Return the archive of uploaded files that belongs to a backup."""
    return path.with_name(f"{path.name}.files.tar")


def proof_of(path: Path) -> Path:
    """Return the file that says that a backup is proved."""
    return path.with_name(f"{path.name}.proof.json")


def has_files(path: Path) -> bool:
    """Whether a backup has an archive of uploaded files."""
    return archive_of(path).exists()


def checksum(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return checksum_of(file)


def checksum_of(content: IO[bytes]) -> str:
    """Return the SHA-256 of what is left to read."""
    digest = hashlib.sha256()
    while chunk := content.read(CHUNK):
        digest.update(chunk)
    return digest.hexdigest()


def _write_files(archive: Path) -> str | None:
    place = storage.current()
    if not isinstance(place, storage.Folder) or not place.root.exists():
        return None
    with draft_of(archive) as draft:
        with tarfile.open(draft, "w") as target, command.progress("Files saved") as show:
            total = sum(1 for _ in _sorted_keys(place.root))
            for number, key in enumerate(_sorted_keys(place.root), 1):
                with suppress(FileNotFoundError):  # removed meanwhile: nothing names it any more
                    target.add(place.root / key, key, recursive=False)
                _forget_members(target)
                show(number, max(number, total))  # more may have come meanwhile
        return checksum(draft)


def _sorted_keys(root: Path) -> Iterator[str]:
    accounts = (path for path in root.iterdir() if path.is_dir() and path.name != storage.INCOMING)
    for account in sorted(accounts):
        # Not the thumbnails, which are made again.
        names = sorted(entry.name for entry in os.scandir(account) if not entry.is_dir())
        yield from (f"{account.name}/{name}" for name in names)


def _forget_members(archive: Any) -> None:
    archive.members.clear()  # tarfile remembers all that it has written or read


def archived(source: tarfile.TarFile) -> Iterator[tuple[str, IO[bytes]]]:
    """The keys of archived files, sorted, and their bytes."""
    while member := source.next():
        _forget_members(source)
        content = source.extractfile(member)
        if content and FILE_KEY.fullmatch(member.name):
            with content:
                yield member.name, content


def _restore_files(path: Path) -> None:
    place = storage.current()
    if not has_files(path):
        return
    if not isinstance(place, storage.Folder):
        raise BackupError(f"{archive_of(path)} is for a folder, but SERVICE_FILES_URL is set")
    try:
        with tarfile.open(archive_of(path)) as source, command.progress("Files restored") as show:
            for number, (key, content) in enumerate(archived(source), 1):
                storage.put_stream(key, content)
                show(number, 0)
    except tarfile.TarError as error:
        raise BackupError(f"{archive_of(path)} cannot be read: {error}") from error


@contextmanager
def draft_of(path: Path) -> Iterator[Path]:
    """A new file that gets its name at the end of the block, when it is on the disk."""
    number, name = tempfile.mkstemp(".part", f"{path.name}.", path.parent)
    os.close(number)
    try:
        yield Path(name)
        storage.sync(Path(name))
        Path(name).rename(path)
        storage.sync(path.parent)
    finally:
        Path(name).unlink(missing_ok=True)


def _write(draft: Path) -> dict[str, int]:
    if _on_sqlite():
        with closing(sqlite3.connect(draft)) as copy, closing(_sqlite()) as source:
            # One snapshot: otherwise the copy would restart with every commit.
            source.execute("BEGIN")
            source.execute("SELECT name FROM sqlite_master").fetchone()
            _copy(source, copy, "Pages saved")
        address = _read_only_uri(draft)  # which leaves nothing beside the file
        reader = sa.create_engine(
            "sqlite://", creator=lambda: sqlite3.connect(address, uri=True), poolclass=sa.NullPool
        )
        with reader.connect() as connection:
            return _count(connection)
    # By the login itself, as pg_dump reads: row-level security would hide rows from the service.
    reader = sa.create_engine(engine.current_engine().url, poolclass=sa.NullPool)
    with reader.connect().execution_options(isolation_level="REPEATABLE READ") as connection:
        if row_security.hides_rows(connection):
            raise BackupError(HIDDEN_ROWS)
        snapshot = connection.scalar(sa.select(sa.func.pg_export_snapshot()))
        lock_timeout = f"--lock-wait-timeout={_lock_milliseconds()}"
        # `row_security` recreates the views.
        what = ("--format=custom", "--no-owner", f"--exclude-schema={row_security.VIEWS}")
        options = (*what, lock_timeout, f"--snapshot={snapshot}", f"--file={draft}", _address())
        run_program_verbosely("pg_dump", *options, label="Tables saved", total=len(_tables()))
        return _count(connection)


def _count(connection: sa.Connection) -> dict[str, int]:
    """Return the rows of each table."""
    count = sa.select(sa.func.count())
    names = sorted(sa.inspect(connection).get_table_names())
    return {name: connection.scalar(count.select_from(sa.table(name))) or 0 for name in names}


def restore(path: Path, *, replacing: bool) -> None:
    """Replace the database by a backup. Raises BackupError, also if the database is not empty."""
    try:
        path.open("rb").close()
    except OSError as error:
        raise BackupError(f"{path} cannot be read: {error.strerror}") from error
    if _tables() and not replacing:
        raise BackupError("the database is not empty: use --replace to overwrite it")
    _restore_files(path)  # first: a restored record must not name what is not there
    # Numbers of changes that readers have seen are not given again.
    restore_database(path, first_change=max(changes.first_number(), _newest_change() + 1))


def restore_database(path: Path, *, first_change: int | None = None) -> None:
    """Replace the database by that of a backup. Raises BackupError.

    With `first_change`, later changes have higher numbers, and the change feed has no earlier ones.
    """
    (_restore_sqlite if _on_sqlite() else _restore_postgres)(path, first_change)


def _newest_change() -> int:
    """Return the highest number of a change in the database to replace; 0 if it is unreadable."""
    with suppress(SQLAlchemyError), engine.current_engine().connect() as connection:
        return connection.scalar(sa.select(sa.func.max(AuditChange.last_id))) or 0
    return 0


def _restore_sqlite(path: Path, first_change: int | None) -> None:
    try:
        with closing(sqlite3.connect(_read_only_uri(path.resolve()), uri=True)) as source:
            tables = {row[0] for row in source.execute("SELECT name FROM sqlite_master")}
            sound = source.execute("PRAGMA integrity_check(1)").fetchone()[0] == "ok"
            if not tables >= REQUIRED_TABLES or not sound:
                raise BackupError(f"{path} is not a valid SQLite backup of Atrium")
            with closing(_sqlite()) as target:
                target.execute("BEGIN IMMEDIATE")  # the copy itself has no timeout
                target.rollback()
                _copy(source, target, "Pages restored")
                if first_change is not None:
                    columns = target.execute("SELECT name FROM pragma_table_info('audit_heads')")
                    if ("expired_change",) in columns:  # else the backup has no feed
                        with target:
                            if "audit_pending" in tables:
                                target.execute(NEW_HEADS)
                            change = "UPDATE audit_heads SET expired_change = ?"
                            target.execute(change, (first_change,))
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY:
            raise BackupError(IN_USE) from error
        raise BackupError(f"{path} cannot be restored: {error}") from error


def _copy(source: sqlite3.Connection, target: sqlite3.Connection, label: str) -> None:
    with command.progress(label) as show:
        source.backup(
            target,
            pages=PAGES_PER_STEP,
            progress=lambda status, remaining, total: show(total - remaining, total),
        )


def _read_only_uri(path: Path) -> str:
    # With `immutable` SQLite creates no files in the folder, which may be read-only, but it also
    # ignores the write-ahead log, which a copy of a database may have.
    log = path.with_name(f"{path.name}-wal")
    whole = not log.exists() or not log.stat().st_size
    return f"{path.as_uri()}?mode=ro{'&immutable=1' if whole else ''}"


def _restore_postgres(path: Path, first_change: int | None) -> None:
    with engine.current_engine().connect() as connection:
        if connection.scalar(citus.HAS_CATALOG):
            raise BackupError(HAS_CITUS)
    contents = run_program("pg_restore", "--list", str(path))
    tables = TABLE_DATA_LINE.findall(contents)
    if not set(tables) >= REQUIRED_TABLES:
        raise BackupError(f"{path} is not a PostgreSQL backup of Atrium")
    with tempfile.NamedTemporaryFile("w", suffix=".list") as use_list:
        use_list.write(
            "\n".join(line for line in contents.splitlines() if not LEFT_OUT_LINE.match(line))
        )
        use_list.flush()
        options = ("--no-owner", f"--use-list={use_list.name}", str(path))
        _replace(*options, tables=len(tables), first_change=first_change)
    engine.current_engine().dispose()
    if config.current().row_security_enabled:
        row_security.install(engine.current_engine())


def _replace(*archive_options: str, tables: int, first_change: int | None) -> None:
    last = "" if first_change is None else EXPIRE_SQL.format(first_change=first_change)
    options = ("--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", "--set=VERBOSITY=verbose")
    args, env = program("psql", *options, f"--dbname={_address()}", "--file=-")
    pipe, devnull = subprocess.PIPE, subprocess.DEVNULL
    error: BackupError | None = None
    with tempfile.TemporaryFile("w+", errors="replace") as stderr:
        with subprocess.Popen(  # noqa: S603
            args, env=env, bufsize=0, stdin=pipe, stdout=devnull, stderr=stderr
        ) as psql:
            sink: Any = psql.stdin
            try:
                # One transaction, which rolls back unless COMMIT arrives.
                sink.write(EMPTY_SCHEMA_SQL.format(milliseconds=_lock_milliseconds()).encode())
                run_program_verbosely(
                    *("pg_restore", "--file=-", *archive_options),
                    label="Tables restored",
                    total=tables,
                    output=sink,
                )
                sink.write(f"{last}COMMIT;\n".encode())
            except BackupError as failure:
                error = failure
            except BrokenPipeError:
                error = BackupError("psql exited early")
        stderr.seek(0)
        check_program("psql", psql.returncode, stderr.read())
    if error:
        raise error


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


class BackupError(AppError):
    """Raised if a backup cannot be written or restored."""


def run_program(name: str, *arguments: str) -> str:
    """Run a program; returns what it prints. Raises BackupError."""
    args, env = program(name, *arguments)
    completed = subprocess.run(  # noqa: S603
        args, env=env, capture_output=True, text=True, errors="replace"
    )
    check_program(name, completed.returncode, completed.stderr)
    return completed.stdout


def run_program_verbosely(
    name: str, *arguments: str, label: str, total: int, output: IO[bytes] | int = subprocess.DEVNULL
) -> None:
    """Run pg_dump or pg_restore, with progress by the tables that it names. Raises BackupError."""
    args, env = program(name, "--verbose", *arguments)
    others, tables = [], 0
    with (
        command.progress(label) as show,
        subprocess.Popen(  # noqa: S603
            args, env=env, stdout=output, stderr=subprocess.PIPE, text=True, errors="replace"
        ) as process,
    ):
        for line in process.stderr or ():
            if TABLE_PROCESSED.search(line):
                show(tables := tables + 1, max(tables, total))
            else:
                others.append(line)
    check_program(name, process.returncode, "".join(others))


def program(name: str, *arguments: str) -> tuple[list[str], dict[str, str]]:
    """Return the command and its environment. Raises BackupError."""
    executable = shutil.which(name)
    if executable is None:
        raise BackupError(f"{name} is missing: install PostgreSQL's client programs")
    # The password is no argument, as every user of the machine can see those.
    password = engine.current_engine().url.password or ""
    return [executable, *arguments], config.child_environment(PGPASSWORD=password, LC_ALL="C")


def check_program(name: str, status: int, stderr: str) -> None:
    """Raise BackupError, with the reason, if a program has failed."""
    if status and LOCK_NOT_AVAILABLE in stderr:
        raise BackupError(IN_USE)
    if status and TIMED_OUT in stderr:
        raise BackupError(TABLE_LOCKED)
    if status:
        raise BackupError(f"{name} failed: {_program_error(stderr.splitlines())}")


def _program_error(lines: Sequence[str]) -> str:
    """Return the first error; later ones are its consequences."""
    errors = [line for line in lines if "error:" in line.lower()]
    return (errors or [*lines[-1:], "no error message"])[0]
