"""Writes an account to a bundle, as it is at one moment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import BinaryIO

import orjson
import sqlalchemy as sa
from cryptography.fernet import InvalidToken

from app import clock, db
from app.accounts.models import Role
from app.audit import sealing as changes
from app.audit.chain import digest, signing
from app.audit.security_log.entries import HEADS
from app.collections import definitions, revisions
from app.collections.definitions import Definition
from app.errors import Conflict
from app.files import storage
from app.manifest import export as manifest
from app.manifest.instance_kinds import ROLES
from app.portability.bundle import frames, snapshot, tables
from app.portability.bundle.snapshot import PIECE, Snapshot
from app.types import JSONMapping, JSONObject

VERSION = 2
NO_ENTRY = (0, digest.FIRST_PREVIOUS)
ROLE_NAMES = sa.select(Role.id, Role.name)
Progress = Callable[[int], None]
UNREADABLE = "A stored secret cannot be decrypted. Run bin/atrium doctor for details."


def ignore(done: int) -> None:
    """The progress that nobody looks at."""


def write(
    account_id: str,
    target: BinaryIO,
    header: JSONMapping,
    key: bytes,
    progress: Progress = ignore,
) -> JSONObject:
    """Write an account's bundle, and return its last line; `seal_events` comes first.

    Calls `progress` with the number of rows and pieces of files written so far. Raises NotFound,
    and Conflict for the system account, or if a stored secret cannot be read.
    """
    with snapshot.opened(account_id) as seen:
        export = _Export(seen, frames.Writer(target, header, key), progress)
        try:
            return export.run()
        except InvalidToken:
            raise Conflict(UNREADABLE) from None


def personal_collections(account_id: str) -> list[Definition]:
    """The collections with personal data of which an account has records."""
    personal = {one.name: one for one in definitions.get_all() if one.personal}
    if not personal:
        return []
    has_rows = [
        sa.select(sa.literal(name)).where(sa.exists().where(one.table.c.account_id == account_id))
        for name, one in personal.items()
    ]
    found = db.connection().scalars(sa.union_all(*has_rows)).all()
    return [personal[name] for name in sorted(found)]


class _Export:
    def __init__(self, seen: Snapshot, writer: frames.Writer, progress: Progress) -> None:
        self._seen, self._account_id = seen, seen.account_id
        self._writer, self._progress = writer, progress
        self._counts: dict[str, int] = {}
        self._done = 0

    def run(self) -> JSONObject:
        """Write everything."""
        account = self._seen.account()
        roles = {row.id: row.name for row in self._seen.connection.execute(ROLE_NAMES)}
        used = self._seen.definitions()
        self._writer.write({"bundle": self._bundle(account)})
        used_fragments: JSONObject = {}
        for one in used:
            used_fragments |= one.fragments
        content = {
            "version": manifest.VERSION,
            "roles": [ROLES.export(row) for row in self._seen.roles(used)],
            "fragments": used_fragments,
            "collections": manifest.collections([one.id for one in used], with_tests=False),
        }
        ids = {one.name: one.id for one in used}
        self._writer.write({"definitions": content, "collection_ids": ids})
        for table in tables.included():
            self._table(table, roles)
        for definition in (one for one in used if not one.view):
            self._table(definition.table, {}, definition.name)
        for table in tables.logs():
            self._table(table, roles)
        self._blobs()
        end: JSONObject = {"counts": self._counts, "digest": self._writer.digest}
        if signed := signing.sign(message(end)):
            end["public_key"], end["signature"] = signed
        self._writer.write({"end": end})
        self._writer.close()
        return end

    def _bundle(self, account: JSONMapping) -> JSONObject:
        last_id, checksum = self._seen.head
        head = sa.select(HEADS.c.number, HEADS.c.checksum, HEADS.c.checkpoint)
        mine = head.where(HEADS.c.account_id == self._account_id)
        row = self._seen.connection.execute(mine).first()
        number, last, checkpoint = row or (*NO_ENTRY, None)
        return {
            "version": VERSION,
            "revision": revisions.core_head(),
            "created_at": clock.iso(clock.now()),
            "account": {
                "id": account["id"],
                "slug": account["slug"],
                "name": account["name"],
                "is_active": account["is_active"],
                "settings": account["settings"],
                "plan": account["plan"],
                "flags": account["flags"],
                "created_at": clock.iso(account["created_at"]),
            },
            "head": {"id": last_id, "checksum": checksum},
            "security_head": {
                "id": number,
                "checksum": last,
                "checkpoint": orjson.loads(checkpoint or "null"),
            },
        }

    def _table(
        self, table: sa.Table, roles: Mapping[int, str], collection: str | None = None
    ) -> None:
        name = f"records/{collection}" if collection else str(table.name)
        self._writer.write({"table": name, "columns": tables.names_of(table)})
        coders = tables.encoders(table, roles)
        count = 0
        rows = self._seen.changes() if table is changes.CHANGES else self._seen.rows(table)
        for row in rows:
            self._writer.write(tables.coded(coders, row))
            count += 1
            self._step()
        self._counts[name] = count

    def _blobs(self) -> None:
        files = tables.core_table("files")
        place, count = storage.current(), 0
        for row in self._seen.rows(files):
            file = dict(zip(tables.names_of(files), row, strict=True))
            if file["removed_at"] is None:
                self._writer.write(
                    {"blob": file["id"], "name": file["name"], "mime_type": file["mime_type"]}
                )
                count += 1
                with suppress(storage.Missing):  # its row says what is missing
                    self._blob(place, storage.key_of(self._account_id, file["id"]), file["size"])
        self._counts["blobs"] = count

    def _blob(self, place: storage.Storage, key: str, size: int) -> None:
        pending = bytearray()
        for piece in place.read(key, 0, size):
            pending += piece
            while len(pending) >= frames.FRAME_BYTES:
                self._writer.write_bytes(bytes(pending[: frames.FRAME_BYTES]))
                del pending[: frames.FRAME_BYTES]
                self._step()
        if pending:
            self._writer.write_bytes(bytes(pending))

    def _step(self) -> None:
        self._done += 1
        if self._done % PIECE == 0:
            self._progress(self._done)


def message(end: JSONMapping) -> bytes:
    """The bytes that a bundle is signed over."""
    signed = {"purpose": "bundle", "counts": end["counts"], "digest": end["digest"]}
    return digest.canonical(signed)
