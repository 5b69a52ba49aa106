"""Writes an account to a bundle, as it is at one moment."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, BinaryIO

import orjson
import sqlalchemy as sa
from cryptography.fernet import InvalidToken

from app import clock, db
from app.accounts.models import SYSTEM_ACCOUNT_ID, Account, Role
from app.audit import sealing as changes
from app.audit.chain import digest, signing
from app.audit.models import AuditHead
from app.audit.security_log import sealing
from app.audit.security_log.entries import HEADS
from app.collections import definitions, expression_names, revisions
from app.collections.definitions import Definition
from app.context import tenancy
from app.errors import Conflict, NotFound
from app.files import storage
from app.manifest import export as manifest
from app.manifest.kinds import ROLES
from app.portability.bundle import frames, tables
from app.rules import named
from app.types import JSONMapping, JSONObject

VERSION = 2
PIECE, LONG_BYTES = 500, 16 * 1024
NO_ENTRY = (0, digest.FIRST_PREVIOUS)
ROLE_NAMES = sa.select(Role.id, Role.name)
Progress = Callable[[int], None]
SYSTEM = "The system account cannot be exported."
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
    _refuse_system(account_id)
    with tenancy.in_account(account_id), changes.complete_snapshot(account_id) as seen:
        export = _Export(seen, account_id, frames.Writer(target, header, key), progress)
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


def seal_events(account_id: str) -> None:
    """Give the newest events their place in the security log, as a bundle has no others.

    Raises Conflict for the system account.
    """
    _refuse_system(account_id)
    sealing.seal(account_id)


def _refuse_system(account_id: str) -> None:
    if account_id == SYSTEM_ACCOUNT_ID:
        raise Conflict(SYSTEM)


class _Export:
    def __init__(
        self,
        seen: tuple[sa.Connection, sa.Connection, Any],
        account_id: str,
        writer: frames.Writer,
        progress: Progress,
    ) -> None:
        self._connection, self._later, self._head = seen
        self._account_id = account_id
        self._writer, self._progress = writer, progress
        self._counts: dict[str, int] = {}
        self._done = 0

    def run(self) -> JSONObject:
        """Write everything."""
        table = tables.core_table(Account.__tablename__)
        is_open = (table.c.id == self._account_id, table.c.closed_at.is_(None))
        account = self._connection.execute(sa.select(table).where(*is_open)).mappings().first()
        if account is None:
            raise NotFound("There is no such account.")
        roles = {row.id: row.name for row in self._connection.execute(ROLE_NAMES)}
        used = self._definitions()
        self._writer.write({"bundle": self._bundle(dict(account))})
        names = {roles[id] for id in self._role_ids() & roles.keys()}
        used_fragments: JSONObject = {}
        for one in used:
            used_fragments |= one.fragments
            texts = (*expression_names.rules_and_rights(one).values(), *one.fragments.values())
            mentions = (mention for text in texts for mention in named.mentions(text))
            names |= {mention.value for mention in mentions if mention.kind == named.ROLE}
        content = {
            "version": manifest.VERSION,
            "roles": [one for one in map(ROLES.export, ROLES.rows()) if one["name"] in names],
            "fragments": used_fragments,
            "collections": manifest.collections([one.id for one in used], with_tests=False),
        }
        ids = {one.name: one.id for one in used}
        self._writer.write({"definitions": content, "collection_ids": ids})
        for table in tables.included():
            self._table(table, roles)
        for definition in used:
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
        last_id, checksum = self._head
        head = sa.select(HEADS.c.number, HEADS.c.checksum, HEADS.c.checkpoint)
        row = self._connection.execute(head.where(HEADS.c.account_id == self._account_id)).first()
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

    def _definitions(self) -> list[Definition]:
        """The collections that the account uses, and those that they and their rules refer to."""
        by_name = {one.name.lower(): one for one in definitions.get_all()}
        named, used = self._named(), set[str]()
        for name, one in by_name.items():
            mine = sa.select(1).where(one.table.c.account_id == self._account_id).limit(1)
            if {one.id, name} & named or self._connection.scalar(mine) is not None:
                used.add(name)
        pending = list(used)
        while pending:
            one = by_name[pending.pop()]
            fields = one.fields.values()
            targets = {field.collection.lower() for field in fields if field.collection}
            texts = (*expression_names.rules_and_rights(one).values(), *one.fragments.values())
            for text in texts:
                found = definitions.referenced_definitions(one, text)
                targets |= {target.name.lower() for target in found}
            pending += (targets & by_name.keys()) - used
            used |= targets & by_name.keys()
        return [by_name[name] for name in sorted(used)]

    def _named(self) -> set[str]:
        """The ids and names of collections that rows of the account have."""
        found: set[str] = set()
        for table, column in (
            ("files", "collection_id"),
            ("saved_views", "collection_id"),
            ("webhooks", "collection"),
        ):
            source = tables.core_table(table)
            mine = source.c.account_id == self._account_id
            values = self._connection.scalars(sa.select(source.c[column]).where(mine).distinct())
            found |= {value.lower() for value in values if value}
        workflows = tables.core_table("workflows")
        mine = workflows.c.account_id == self._account_id
        for row in self._connection.execute(
            sa.select(workflows.c.trigger, workflows.c.steps).where(mine)
        ):
            found |= set(_collections_in(list(row)))
        return found

    def _role_ids(self) -> set[int]:
        """The ids of roles that rows of the account have."""
        found: set[int] = set()
        for table in tables.included():
            for column in tables.ROLE_COLUMNS & set(table.c.keys()):
                mine = (table.c.account_id == self._account_id, table.c[column].is_not(None))
                ids = sa.select(table.c[column]).where(*mine).distinct()
                found.update(self._connection.scalars(ids))
        return found

    def _table(
        self, table: sa.Table, roles: Mapping[int, str], collection: str | None = None
    ) -> None:
        name = f"records/{collection}" if collection else str(table.name)
        self._writer.write({"table": name, "columns": tables.names_of(table)})
        coders = tables.encoders(table, roles)
        count = 0
        rows = self._rows(table)
        if table is changes.CHANGES:
            head = sa.select(AuditHead.last_id).where(AuditHead.account_id == self._account_id)
            last = self._connection.scalar(head) or 0
            sealed = (table.c.first_id > last, table.c.first_id <= self._head[0])
            rows = chain(rows, self._rows(table, self._later, *sealed))
        for row in rows:
            self._writer.write(tables.coded(coders, row))
            count += 1
            self._step()
        self._counts[name] = count

    def _rows(
        self, table: sa.Table, connection: sa.Connection | None = None, *where: Any
    ) -> Iterator[Sequence[Any]]:
        """The rows of a table in pieces; rows with long values one by one, as each may be 10 MB."""
        connection = connection or self._connection
        names, columns = tables.names_of(table), tables.selected(table)
        key = [column for column in table.primary_key if column.name != "account_id"]
        places = [names.index(column.name) for column in key]
        mine = sa.select(*columns).where(table.c.account_id == self._account_id, *where)
        query = mine.with_only_columns(*tables.shortened(columns, key, LONG_BYTES))
        query = query.order_by(*key).limit(PIECE)

        def key_of(row: sa.Row[Any]) -> sa.Tuple:
            values = zip(places, key, strict=True)
            return sa.tuple_(*(sa.literal(row[place], column.type) for place, column in values))

        piece = query
        while True:
            rows = connection.execute(piece).all()
            for row in rows:
                if row.is_long:
                    whole = mine.where(sa.tuple_(*key) == key_of(row))
                    yield connection.execute(whole).one()
                else:
                    yield row[:-1]
            if len(rows) < PIECE:
                return
            piece = query.where(sa.tuple_(*key) > key_of(rows[-1]))

    def _blobs(self) -> None:
        files = tables.core_table("files")
        place, count = storage.current(), 0
        for row in self._rows(files):
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


def _collections_in(value: Any) -> Iterator[str]:
    """The texts that stand under `collection` anywhere in JSON."""
    if isinstance(value, list):
        for item in value:
            yield from _collections_in(item)
    elif isinstance(value, dict):
        for name, item in value.items():
            if name == "collection" and isinstance(item, str):
                yield item.lower()
            else:
                yield from _collections_in(item)
