"""Reads a bundle, and verifies all of it before anything is written."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

from app.audit.chain import signing, verify
from app.audit.log import AUDIT
from app.audit.security_log import entries
from app.audit.security_log.log import SECURITY
from app.collections import revisions
from app.db.policy import OF_EXTENSIONS
from app.errors import Conflict
from app.portability.bundle import exporting, frames, tables
from app.portability.bundle.exporting import Progress, ignore
from app.portability.bundle.snapshot import PIECE
from app.types import JSONMapping, JSONObject

KINDS = ("bundle", "definitions", "table", "blob", "end")
UNSIGNED = "unsigned"
OTHER_RELEASE = (
    "The bundle is of revision {}, this database of {}: bring both instances to the same release."
)
OTHER_EXTENSION = (
    "The bundle has the table {} of an extension that this instance lacks, or has in another"
    " version: bring both instances to the same one."
)
UNTRUSTED = (
    "The bundle is {}. Who knows its passphrase could have written it."
    " If you trust where it is from, say --trust {}."
)


class Event(NamedTuple):
    """A line of a bundle: one of `KINDS`, or a `row` of the table, or a `piece` of the blob."""

    kind: str
    value: Any


@dataclass
class Contents:
    path: Path
    passphrase: str
    account: JSONObject = field(default_factory=dict)
    head: JSONObject = field(default_factory=dict)
    security_head: JSONObject = field(default_factory=dict)
    definitions: JSONObject = field(default_factory=dict)
    collection_ids: dict[str, str] = field(default_factory=dict)
    """The ids that collections have where the bundle is from, by name."""
    is_own: bool = False
    """Whether this instance has signed it."""

    def events(self) -> Iterator[Event]:
        """All lines, in order."""
        return _events(self.path, self.passphrase)


def load(
    path: Path, passphrase: str, *, trusted: str | None = None, progress: Progress = ignore
) -> Contents:
    """Verify a bundle: its encryption, counts, files, both logs and the signature.

    `trusted` is the public key of another instance that may have signed it, or `UNSIGNED`. Raises
    Conflict.
    """
    check = _Check(Contents(path, passphrase))
    try:
        for number, event in enumerate(_events(path, passphrase), 1):
            check.take(event)
            if number % PIECE == 0:
                progress(number)
        return check.finished(trusted)
    except (KeyError, ValueError, TypeError, AttributeError, IndexError) as error:
        raise Conflict(frames.CUT) from error


def _events(path: Path, passphrase: str) -> Iterator[Event]:
    with path.open("rb") as source:
        reader = frames.Reader(source, passphrase)
        for line in reader.lines():
            if isinstance(line, list):
                yield Event("row", line)
            elif isinstance(line, bytes):
                yield Event("piece", line)
            elif isinstance(line, dict):
                kind = next((name for name in KINDS if name in line), "")
                yield Event(kind, {**line, "read": reader.digest} if kind == "end" else line)
            else:
                raise Conflict(frames.CUT)


class _Check:
    def __init__(self, contents: Contents) -> None:
        self._contents = contents
        self._counts: dict[str, int] = {}
        self._table, self._columns = "", list[str]()
        self._files: dict[str, tuple[int, str]] = {}
        self._blob: tuple[str, int, Any] | None = None
        self._chain: verify.Chain | None = None
        self._security_log: verify.Chain | None = None
        self._previous: bytes | None = None
        self._end: JSONMapping | None = None

    def take(self, event: Event) -> None:
        """Check the next line."""
        if self._end is not None or (event.kind != "bundle") == (not self._contents.account):
            raise Conflict(frames.CUT)
        if event.kind not in ("piece", "row"):
            self._close_blob()
        getattr(self, f"_take_{event.kind}")(event.value)

    def finished(self, trusted: str | None) -> Contents:
        end, chain, security_log = self._end, self._chain, self._security_log
        if not end or not chain or not security_log or end["counts"] != self._counts:
            raise Conflict(frames.CUT)
        contents = self._contents
        if reason := _fault(chain, contents.head):
            raise Conflict(f"The audit chain of the bundle is broken: {reason}.")
        if reason := _fault(security_log, contents.security_head):
            raise Conflict(f"The security log of the bundle is broken: {reason}.")
        self._contents.is_own = _check_signature(end, trusted)
        return self._contents

    def _take_bundle(self, line: JSONMapping) -> None:
        bundle = line["bundle"]
        if bundle["version"] != exporting.VERSION:
            raise Conflict(frames.NO_BUNDLE)
        applied = revisions.applied_core_revision()
        if bundle["revision"] != applied:
            raise Conflict(OTHER_RELEASE.format(bundle["revision"], applied))
        account = bundle["account"]
        _require_id(account["id"])
        types = {"slug": str, "name": str, "is_active": bool, "settings": dict}
        if not all(isinstance(account[name], kind) for name, kind in types.items()):
            raise Conflict(frames.CUT)
        given = account["flags"].values() if isinstance(account["flags"], dict) else [None]
        if not isinstance(account["plan"], str | None) or not {*map(type, given)} <= {bool}:
            raise Conflict(frames.CUT)
        self._contents.account, self._contents.head = account, bundle["head"]
        self._contents.security_head = bundle["security_head"]
        account_id = account["id"]
        self._chain = verify.Chain(verify.Report(account_id))
        self._security_log = verify.Chain(verify.Report(SECURITY.chain_id(account_id)))
        checkpoint = bundle["security_head"]["checkpoint"]
        if checkpoint is not None:
            self._check_signed(checkpoint)
            if checkpoint["account_id"] != self._security_log.report.account_id:
                raise Conflict(frames.CUT)
            self._security_log.checkpoints = {checkpoint["entry_id"]: checkpoint["checksum"]}

    def _take_definitions(self, line: JSONMapping) -> None:
        # A manifest may also say what other accounts are to have.
        if line["definitions"].keys() != {"version", "roles", "fragments", "collections"}:
            raise Conflict(frames.CUT)
        self._contents.definitions = line["definitions"]
        self._contents.collection_ids = line["collection_ids"]

    def _take_table(self, line: JSONMapping) -> None:
        name, columns = line["table"], line["columns"]
        collection = name.removeprefix("records/")
        known = {one["name"] for one in self._contents.definitions["collections"]}
        if collection == name and name.startswith(OF_EXTENSIONS):
            own = tables.bundled().get(name)
            if own is None or columns != tables.names_of(tables.core_table(name)):
                raise Conflict(OTHER_EXTENSION.format(name))
        if name in self._counts or (collection == name) != (name in tables.bundled()):
            raise Conflict(frames.CUT)
        if collection != name and collection not in known:
            raise Conflict(frames.CUT)
        if collection == name and columns != tables.names_of(tables.core_table(name)):
            raise Conflict(frames.CUT)
        self._table, self._columns, self._counts[name] = name, columns, 0

    def _take_row(self, row: list[Any]) -> None:
        if len(row) != len(self._columns) or self._blob is not None:
            raise Conflict(frames.CUT)
        self._counts[self._table] += 1
        if self._table in ("files", "users"):
            _require_id(row[self._columns.index("id")])
        if self._table == "files":
            file = dict(zip(self._columns, row, strict=True))
            self._files[file["id"]] = (file["size"], file["sha256"])
        elif self._table == "audit_starts":
            self._take_start(row, self._chain)
        elif self._table == "security_starts":
            self._take_start(row, self._security_log)
        elif self._table == "audit_changes":
            self._take_change(row)
        elif self._table == "audit_checkpoints":
            self._take_checkpoint(row)
        elif self._table == "security_events":
            self._take_security_event(row)

    def _take_start(self, row: list[Any], chain: verify.Chain | None) -> None:
        if chain is None or chain.last_id:
            raise Conflict(frames.CUT)
        values = tables.coded(tables.decoders(tables.core_table(self._table), {}), row)
        stored = dict(zip(self._columns, values, strict=True))
        start = signing.stored_start({**stored, "account_id": chain.report.account_id})
        self._check_signed(start)
        chain.last_id, chain.last_checksum = start["entry_id"], start["checksum"]
        chain.checkpoints = {id: one for id, one in chain.checkpoints.items() if id > chain.last_id}
        if chain is self._chain:
            self._previous = stored["checksum"]

    def _take_change(self, row: list[Any]) -> None:
        values = tables.coded(tables.decoders(tables.core_table(self._table), {}), row)
        change = dict(zip(self._columns, values, strict=True))
        change |= {"account_id": self._contents.account["id"], "previous": self._previous}
        if self._chain is not None:
            verify.take_row(AUDIT, self._chain, change)
        self._previous = change["checksum"]

    def _take_checkpoint(self, row: list[Any]) -> None:
        checkpoint = dict(zip(self._columns, row, strict=True))
        checkpoint["account_id"] = self._contents.account["id"]
        self._check_signed(checkpoint)

    def _check_signed(self, checkpoint: JSONMapping) -> None:
        signature, key = checkpoint["signature"], checkpoint["public_key"]
        if not signing.is_signed(signing.message(checkpoint), key, signature):
            raise Conflict("A checkpoint of the bundle has an invalid signature.")

    def _take_security_event(self, row: list[Any]) -> None:
        values = tables.coded(tables.decoders(tables.core_table(self._table), {}), row)
        event = dict(zip(self._columns, values, strict=True))
        event["account_id"] = self._contents.account["id"]
        if self._security_log is not None:
            previous = self._security_log.last_checksum
            self._security_log.take(entries.to_entry(event, previous))

    def _take_blob(self, line: JSONMapping) -> None:
        if line["blob"] not in self._files:
            raise Conflict(frames.CUT)
        self._counts["blobs"] = self._counts.get("blobs", 0) + 1
        self._blob = (line["blob"], 0, hashlib.sha256())

    def _take_piece(self, piece: bytes) -> None:
        if self._blob is None:
            raise Conflict(frames.CUT)
        file_id, size, hashed = self._blob
        hashed.update(piece)
        self._blob = (file_id, size + len(piece), hashed)

    def _close_blob(self) -> None:
        if self._blob is not None:
            file_id, size, hashed = self._blob
            # A blob that was missing already is exported without content.
            if size and (size, hashed.hexdigest()) != self._files[file_id]:
                raise Conflict(
                    f"The file {file_id} of the bundle is not the one that was uploaded."
                )
        self._blob = None

    def _take_end(self, line: JSONMapping) -> None:
        if line["end"]["digest"] != line["read"]:
            raise Conflict(frames.CUT)
        self._counts.setdefault("blobs", 0)
        self._end = line["end"]


def _require_id(text: str) -> None:
    # Others are names of accounts, folders or the service itself.
    if str(UUID(text)) != text:
        raise Conflict(frames.CUT)


def _fault(chain: verify.Chain, head: JSONMapping) -> str | None:
    """The fault of a chain that has to end with this head."""
    report = chain.close()
    if report.valid and (chain.last_id, chain.last_checksum) == (head["id"], head["checksum"]):
        return None
    return report.reason or "its end is missing"


def _check_signature(end: JSONMapping, trusted: str | None) -> bool:
    """Whether this instance has signed it. Raises Conflict if nobody trusted has."""
    key = end.get("public_key", UNSIGNED)
    if key != UNSIGNED and not signing.is_signed(exporting.message(end), key, end["signature"]):
        raise Conflict(frames.CUT)
    if key in signing.public_keys():
        return True
    if trusted != key:
        signer = "not signed" if key == UNSIGNED else f"signed by another instance, {key}"
        raise Conflict(UNTRUSTED.format(signer, key))
    return False
