"""Writes an account as a ZIP archive that is readable without Atrium: JSON lines, files, a README.

It has what a bundle has but for secrets, and for what only a bundle can bring back; records and
people are as unmasked as there. The audit log is as whoever ordered it may see it. Attributes are
those that admins of the account see.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import IO, Any, BinaryIO

import orjson
import sqlalchemy as sa

from app import clock
from app.accounts import attributes
from app.accounts.attributes import Kind, Level
from app.accounts.models import User
from app.audit.entries import Mask, readable
from app.audit.models import AuditStart
from app.audit.security_log import entries as security
from app.audit.security_log import service as security_log
from app.auth.principal import Principal
from app.collections import trash
from app.collections.definitions import Definition
from app.files import storage
from app.files.models import FILES
from app.manifest import export as manifest
from app.manifest.instance_kinds import ROLES
from app.portability.bundle import snapshot, tables
from app.portability.bundle.snapshot import PIECE, Snapshot
from app.records.transfer import archives
from app.records.transfer.archives import Entry
from app.types import JSONMapping, JSONObject
from app.web.serialization import dumps

MOST_FILES = 50_000
"""In one archive, whose directory takes 30 MB of memory; further ones are archives within it."""
IN_MEMORY, LINES_BYTES = 2**20, 2**18
CHANGES_AT_ONCE = 200
USER = (
    *("id", "email", "name", "is_active", "email_verified", "email_verified_at", "auth_provider"),
    *("language", "attributes", "last_login", "created_at", "updated_at"),
)
ACCOUNT = (
    *("id", "slug", "name", "account_code", "is_active", "plan", "flags"),
    *("attributes", "template", "template_version", "created_at"),
)
FILE = (
    *("id", "name", "mime_type", "size", "sha256", "collection", "record_id"),
    *("uploaded_by", "created_at"),
)
README = Path(__file__).with_name("account_readme.txt").read_text()

Progress = Callable[[int], None]


def write(account_id: str, target: BinaryIO, progress: Progress, *, by: Principal) -> None:
    """Write an account's archive, as ordered by one of its admins; `seal_events` comes first.

    Calls `progress` with the number of lines and files written so far. Raises NotFound, and
    Conflict for the system account.
    """
    with snapshot.opened(account_id) as seen, SpooledTemporaryFile(IN_MEMORY) as listed:
        for piece in archives.write_zip(_Archive(seen, by, progress, listed).entries()):
            target.write(piece)


@dataclass
class _Archive:
    seen: Snapshot
    by: Principal
    progress: Progress
    listed: IO[bytes]
    """The lines about files, as these are written."""
    done: int = 0
    collections: dict[str, str] = field(default_factory=dict)
    """The names of collections by id."""

    def entries(self) -> Iterator[Entry]:
        account = self.seen.account()
        used = self.seen.definitions()
        self.collections = {one.id: one.name for one in used}
        roles = self.seen.roles(used)
        moment = f"{clock.now():%Y-%m-%d %H:%M}"
        title = str(account["name"])
        text = README.format(name=title, line="=" * len(title), moment=moment, most=MOST_FILES)
        yield Entry("README.txt", [text.encode()], is_compressed=True)
        shown = {name: account[name] for name in ACCOUNT}
        seen = attributes.load(Kind.ACCOUNTS).shown(account["attributes"], Level.ADMIN)
        yield _document("account.json", {**shown, "attributes": seen})
        exported = manifest.manifest([account["slug"]]) if account["is_active"] else {}
        yield _document("settings.json", exported.get("accounts", {}).get(account["slug"], {}))
        fragments: JSONObject = {}
        for one in used:
            fragments |= one.fragments
        schemas = manifest.collections([one.id for one in used], with_tests=False)
        yield _document("collections.json", {"collections": schemas, "fragments": fragments})
        yield self._lines("roles", map(ROLES.export, roles))
        yield self._lines("users", self._users({row.id: row.name for row in roles}))
        yield self._lines("groups", self._rows("groups", ("id", "name", "description")))
        yield self._lines("group_members", self._rows("group_members", ("group_id", "user_id")))
        for one in (one for one in used if not one.view):
            yield self._lines(f"records/{one.name}", self._records(one))
            if one.trash_days:
                yield self._lines(f"trash/{one.name}", self._records(trash.of(one)))
        yield from self._files()
        self.listed.seek(0)
        yield Entry("files.jsonl", self.listed, is_compressed=True)
        yield self._lines("audit_log", self._audit_log())
        yield self._lines("security_log", self._security_log())

    def _lines(self, name: str, items: Iterable[JSONMapping]) -> Entry:
        """A file with a line for each item, in pieces of some size."""

        def pieces() -> Iterator[bytes]:
            pending, size = list[bytes](), 0
            for item in items:
                pending.append(dumps(item) + b"\n")
                size += len(pending[-1])
                self._step()
                if size > LINES_BYTES:
                    yield b"".join(pending)
                    pending, size = [], 0
            yield b"".join(pending)

        return Entry(f"{name}.jsonl", pieces(), is_compressed=True)

    def _step(self) -> None:
        self.done += 1
        if self.done % PIECE == 0:
            self.progress(self.done)

    def _rows(self, name: str, columns: Sequence[str]) -> Iterator[JSONObject]:
        """Some columns of the rows of a table."""
        table = tables.core_table(name)
        names = tables.names_of(table)
        as_text = {one for one in columns if isinstance(table.c[one].type, sa.JSON)}
        for row in self.seen.rows(table):
            values = dict(zip(names, row, strict=True))
            yield {one: _json(values[one]) if one in as_text else values[one] for one in columns}

    def _users(self, roles: Mapping[int, str]) -> Iterator[JSONObject]:
        known = attributes.load(Kind.USERS)
        for row in self._rows(User.__tablename__, (*USER, "role_id")):
            seen = known.shown(row["attributes"], Level.ADMIN)
            yield row | {"role": roles.get(row.pop("role_id")), "attributes": seen}

    def _records(self, definition: Definition) -> Iterator[JSONObject]:
        names = tables.names_of(definition.table)
        for row in self.seen.rows(definition.table):
            record = dict(zip(names, row, strict=True))
            for name, encode, json_type in definition.encoders:
                value = record.get(name)
                if value is not None and value.__class__ is not json_type:
                    record[name] = encode(value)
            yield record

    def _files(self) -> Iterator[Entry]:
        names = tables.names_of(FILES)
        rows = (dict(zip(names, row, strict=True)) for row in self.seen.rows(FILES))
        kept = (row for row in rows if row["removed_at"] is None)
        for part, group in groupby(enumerate(kept), lambda item: item[0] // MOST_FILES):
            inner = f"files-{part + 1}.zip" if part else ""
            entries = self._entries_of((row for _, row in group), inner)
            if inner:
                yield Entry(inner, archives.write_zip(entries))
            else:
                yield from entries

    def _entries_of(self, rows: Iterable[JSONObject], inner: str) -> Iterator[Entry]:
        for row in rows:
            name = archives.entry_name(row)
            key = storage.key_of(self.seen.account_id, row["id"])
            try:
                pieces = iter(storage.current().read(key, 0, row["size"]))
                first = next(pieces, b"")
            except storage.Missing:
                name = ""
            else:
                yield Entry(name, chain([first], pieces))
            self._step()
            path = f"{inner}/{name}" if inner and name else name or None
            line = {**row, "collection": self.collections.get(row["collection_id"] or "")}
            self.listed.write(dumps({one: line[one] for one in FILE} | {"path": path}) + b"\n")

    def _audit_log(self) -> Iterator[JSONObject]:
        """The entries of the log, masked for whoever ordered the archive."""
        mask = Mask(self.by, is_noted=False)
        names = tables.names_of(tables.core_table("audit_changes"))
        start = sa.select(tables.core_table(AuditStart.__tablename__).c.checksum)
        mine = AuditStart.account_id == self.seen.account_id
        previous = self.seen.connection.scalar(start.where(mine))
        batch, size = list[JSONObject](), 0

        def shown() -> Iterator[JSONObject]:
            mask.load(batch)
            for change in batch:
                yield from map(mask, readable(change))

        for row in self.seen.changes():
            change = dict(zip(names, row, strict=True))
            change |= {"account_id": self.seen.account_id, "previous": previous}
            previous = change["checksum"]
            batch.append(change)
            size += sum(len(change[one] or "") for one in ("old_values", "new_values"))
            if len(batch) == CHANGES_AT_ONCE or size > LINES_BYTES:
                yield from shown()
                batch, size = [], 0
        yield from shown()

    def _security_log(self) -> Iterator[JSONObject]:
        heads = security.HEADS
        head = sa.select(heads.c.number).where(heads.c.account_id == self.seen.account_id)
        until = self.seen.connection.scalar(head) or 0
        found = security.iter_events(self.seen.account_id, until=until)
        return map(security_log.view, found)


def _document(name: str, content: JSONMapping) -> Entry:
    text = orjson.dumps(orjson.loads(dumps(content)), option=orjson.OPT_INDENT_2)
    return Entry(name, [text + b"\n"], is_compressed=True)


def _json(text: str | None) -> Any:
    return None if text is None else orjson.loads(text)
