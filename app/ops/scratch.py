"""Databases and folders for unfinished work: they vanish with it, also if its process is killed.

Each is locked as long as its process lives, and whoever makes the next one beside it removes those
that nobody locks.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg2
from psycopg2 import sql

from app import clock, config
from app.config.settings import Config
from app.db import engine
from app.ops.backups import BackupError

FOLDER_PREFIX, LOCK_FILE = "atrium-backup-", "lock"
UNLOCKED_SECONDS = 3600
"""By then a folder has a lock, or its process was killed in between."""
FIND_DATABASES = "SELECT datname FROM pg_database WHERE starts_with(datname, %s)"
# Advisory locks in the service's own database, to which every process that makes scratch databases
# for it has access.
LOCK = "SELECT pg_try_advisory_lock(%s, hashtext(%s))"
UNLOCK = "SELECT pg_advisory_unlock(%s, hashtext(%s))"
LOCK_CLASS = 0x41747269  # "Atri"


@contextmanager
def database() -> Iterator[Config]:
    """Yield the settings for an empty database, which is dropped at the end of the block.

    Raises BackupError if it cannot be created.
    """
    settings = replace(config.current(), redis_url="", otel_exporter_otlp_endpoint="")
    with folder(parent_folder()) as path:
        settings = replace(settings, instance_dir=path)
        if engine.current_engine().dialect.name == "sqlite":
            yield replace(settings, database_url=f"sqlite:///{path / 'scratch.db'}")
        else:
            with _postgres_database() as url:
                yield replace(settings, database_url=url)


@contextmanager
def _postgres_database() -> Iterator[str]:
    url = engine.current_engine().url
    address = url.set(drivername="postgresql").render_as_string(hide_password=False)
    prefix = _prefix(str(url.database))
    name = f"{prefix}{secrets.token_hex(6)}"
    try:
        with closing(psycopg2.connect(address)) as connection:
            connection.autocommit = True
            with connection.cursor() as cursor:
                _drop_abandoned(cursor, prefix)
                # Locked before it exists, for as long as this connection: that ends with the
                # process, and the next one drops the database.
                cursor.execute(LOCK, (LOCK_CLASS, name))
                cursor.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
                try:
                    yield url.set(database=name).render_as_string(hide_password=False)
                finally:
                    _drop(cursor, name)
    except psycopg2.Error as error:
        message = f"a scratch database is needed to prove a backup: {error}"
        raise BackupError(message) from error


def _prefix(database: str) -> str:
    # Names are cut at 63 bytes; the digest tells databases with a common beginning apart.
    digest = hashlib.sha256(database.encode()).hexdigest()[:8]
    return f"{database.encode()[:30].decode(errors='ignore')}_proof_{digest}"


def _drop_abandoned(cursor: Any, prefix: str) -> None:
    """Drop the scratch databases whose process has ended: nobody holds their lock."""
    cursor.execute(FIND_DATABASES, (prefix,))
    for (name,) in cursor.fetchall():
        if not re.fullmatch("[0-9a-f]{12}", name.removeprefix(prefix)):
            continue
        cursor.execute(LOCK, (LOCK_CLASS, name))
        if cursor.fetchone()[0]:
            _drop(cursor, name)
            cursor.execute(UNLOCK, (LOCK_CLASS, name))


def _drop(cursor: Any, name: str) -> None:
    cursor.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))


def parent_folder() -> Path:
    """Return the folder of scratch databases and backups, which may be too large for /tmp."""
    path = config.current().instance_dir.resolve() / "backups"
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


@contextmanager
def folder(parent: Path) -> Iterator[Path]:
    """A new folder that is removed at the end of the block."""
    remove_abandoned_folders(parent)
    path = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX, dir=parent))
    try:
        with (path / f"{LOCK_FILE}.new").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            # Named once it is locked: whoever finds the name unlocked knows that this one is gone.
            Path(file.name).rename(path / LOCK_FILE)
            yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def remove_abandoned_folders(parent: Path) -> None:
    """Remove what killed processes left over."""
    for path in parent.glob(f"{FOLDER_PREFIX}*"):
        with suppress(OSError):  # somebody else's
            if path.stat().st_uid == os.geteuid() and _is_abandoned(path):
                shutil.rmtree(path, ignore_errors=True)


def _is_abandoned(path: Path) -> bool:
    try:
        with (path / LOCK_FILE).open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    except BlockingIOError:
        return False
    except FileNotFoundError:
        return clock.now().timestamp() - path.stat().st_mtime > UNLOCKED_SECONDS
