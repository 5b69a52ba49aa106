"""Scratch databases: empty ones beside the service's own, to restore a backup into."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

import psycopg2
from psycopg2 import sql

from app import config
from app.config.settings import Config
from app.db import engine
from app.ops import work_folders
from app.ops.pg_programs import BackupError

FIND = "SELECT datname FROM pg_database WHERE starts_with(datname, %s)"
# Advisory locks in the service's own database, to which every process that makes scratch databases
# for it has access.
LOCK = "SELECT pg_try_advisory_lock(%s, hashtext(%s))"
UNLOCK = "SELECT pg_advisory_unlock(%s, hashtext(%s))"
LOCK_CLASS = 0x41747269  # "Atri"


@contextmanager
def scratch() -> Iterator[Config]:
    """Yield the settings for an empty database, which is dropped at the end of the block.

    Raises BackupError if it cannot be created.
    """
    settings = replace(config.current(), redis_url="", otel_exporter_otlp_endpoint="")
    with work_folders.work_folder(work_folders.parent()) as folder:
        settings = replace(settings, instance_dir=folder)
        if engine.current_engine().dialect.name == "sqlite":
            yield replace(settings, database_url=f"sqlite:///{folder / 'scratch.db'}")
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
    cursor.execute(FIND, (prefix,))
    for (name,) in cursor.fetchall():
        if not re.fullmatch("[0-9a-f]{12}", name.removeprefix(prefix)):
            continue
        cursor.execute(LOCK, (LOCK_CLASS, name))
        if cursor.fetchone()[0]:
            _drop(cursor, name)
            cursor.execute(UNLOCK, (LOCK_CLASS, name))


def _drop(cursor: Any, name: str) -> None:
    cursor.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))
