"""Proved backups: restored into a scratch database, counted, and their chains verified.

A backup counts as proved by `<file>.proof.json`, which is written last: with the rows of each table
in the snapshot that was saved, and the checksum of the file.
"""

from __future__ import annotations

import hashlib
import secrets
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import orjson
import psycopg2
import sqlalchemy as sa
from flask import current_app
from psycopg2 import sql

from app import clock, config, db
from app.audit import verify
from app.config.settings import Config
from app.db import engine
from app.ops import backups, progress
from app.ops.pg_programs import BackupError
from app.security import service as security_log

Counts = Mapping[str, int]
CHUNK = 2**20


def prove(path: Path, expected: Counts) -> dict[str, object]:
    """Prove a backup whose snapshot had so many rows in each table; returns what is stored.

    Raises BackupError, and leaves no proof, if anything differs.
    """
    digest = _checksum(path)
    with _scratch() as settings:
        scratch = current_app.extensions["atrium.factory"](settings)
        try:
            with scratch.app_context():
                backups.restore_database(path)
                entries = _check(expected)
        finally:
            with scratch.app_context():
                db.db.session.remove()
                engine.current_engine().dispose()
    proof: dict[str, object] = {
        "proved_at": clock.iso(clock.now()),
        "sha256": digest,
        "rows": sum(expected.values()),
        "tables": dict(expected),
        "audit_entries": entries,
    }
    with backups.draft_of(backups.proof_of(path)) as draft:
        draft.write_bytes(orjson.dumps(proof, option=orjson.OPT_INDENT_2))
    return proof


def _check(expected: Counts) -> int:
    """Compare what was restored; returns the number of verified audit entries."""
    with progress.shown("Tables counted") as show:
        for number, (name, rows) in enumerate(sorted(expected.items()), 1):
            found = db.connection().scalar(sa.select(sa.func.count()).select_from(sa.table(name)))
            if found != rows:
                raise BackupError(f"the table {name} has {found} rows after a restore, not {rows}")
            show(number, len(expected))
    with progress.shown("Entries verified") as show:
        audit = verify.verify_all(progress=lambda count: show(count, 0))
    for fault in verify.faults(audit):
        raise BackupError(f"the restored audit log is broken: {fault}")
    for account_id in security_log.account_ids(None):
        report = security_log.verify_chain(account_id)
        if not report["valid"]:
            raise BackupError(f"the restored security log of {account_id} is broken")
    checked: int = audit["checked"]
    return checked


@contextmanager
def _scratch() -> Iterator[Config]:
    """The settings of an application with an empty database that goes at the end of the block."""
    settings = replace(config.current(), redis_url="")
    with tempfile.TemporaryDirectory(prefix="atrium-proof-") as folder:
        own = replace(settings, instance_dir=Path(folder))
        if engine.current_engine().dialect.name == "sqlite":
            yield replace(own, database_url=f"sqlite:///{Path(folder) / 'scratch.db'}")
            return
        url = engine.current_engine().url
        name = f"{str(url.database)[:40]}_proof_{secrets.token_hex(6)}"
        _execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        try:
            yield replace(own, database_url=url.set(database=name).render_as_string(False))
        finally:
            _execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def _execute(statement: sql.Composable) -> None:
    url = engine.current_engine().url.set(drivername="postgresql")
    try:
        with closing(psycopg2.connect(url.render_as_string(hide_password=False))) as connection:
            connection.autocommit = True
            with connection.cursor() as cursor:
                cursor.execute(statement)
    except psycopg2.Error as error:
        raise BackupError(f"a scratch database is needed to prove a backup: {error}") from error


def _checksum(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
