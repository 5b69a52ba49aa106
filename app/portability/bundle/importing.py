"""Creates an account from a verified bundle, in one transaction."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import orjson
import sqlalchemy as sa

from app import clock, db, jobs, slugs
from app.accounts import service as accounts
from app.accounts.models import SYSTEM_ACCOUNT_ID, Account, User
from app.accounts.plans import stored as plans
from app.audit import append, checkpoints
from app.audit import sealing as changes
from app.audit.chain import digest, signing
from app.audit.models import AuditChange, AuditHead
from app.audit.security_log import sealing
from app.audit.security_log.entries import HEADS
from app.audit.security_log.log import SECURITY
from app.audit.security_log.models import SecurityHead
from app.auth.principal import Principal
from app.collections import definitions, links, search_words
from app.context import actor, tenancy
from app.context.actor import ActorKind
from app.db import citus, engine, errors, versioned_cache
from app.errors import Conflict
from app.ids import new_id
from app.manifest import document
from app.manifest import service as manifest
from app.portability import certificates
from app.portability.bundle import blobs, frames, shard_inserts, tables
from app.portability.bundle.contents import Contents
from app.portability.bundle.exporting import ROLE_NAMES, Progress, ignore
from app.portability.bundle.shard_inserts import Staged
from app.portability.bundle.snapshot import PIECE
from app.realtime.feed import changes as feed_changes
from app.types import cached_property
from app.webhooks import versions as webhook_versions

CLASH = "Definitions of this instance differ from those of the bundle; nothing was changed: {}."
STILL_DELETING = "The data of this account is still being deleted. Try again later."
SYSTEM = "This bundle names the system account, which cannot be imported."
IMPORTED = "Another import has created this account meanwhile."
NO_PLAN = "The account has the plan {}, which this instance lacks. Create it first."
SLUG_TAKEN = "The slug {} is taken. Import the account under another one."
CHAIN_HEADS = (AuditHead, SecurityHead)
IN_TRASH = ("trashed_records", "record")
UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
MAX_LENGTH = 4_000_000  # characters of the rows that one statement inserts, unless one has more


@dataclass
class Imported:
    """The account that was created."""

    account_id: str
    slug: str
    is_same: bool
    """Whether it has the id and the audit chain of the bundle."""
    rows: int


def run(
    contents: Contents,
    *,
    by: Principal,
    slug: str | None = None,
    as_copy: bool = False,
    progress: Progress = ignore,
) -> Imported:
    """Create the account of a bundle, under its id if that is free.

    A deleted account, the chain of which goes on where the bundle ends, gets its data back. Raises
    Conflict, for example if the slug is taken or definitions clash; then nothing is changed.
    """
    if contents.account["id"] == SYSTEM_ACCOUNT_ID:
        raise Conflict(SYSTEM)
    slug = slug or contents.account["slug"]
    if wrong := slugs.slug_problem(slug):
        raise Conflict(wrong, field="slug")
    if db.connection().scalar(sa.select(Account.id).where(Account.slug == slug)) is not None:
        raise Conflict(SLUG_TAKEN.format(slug), field="slug")
    # This instance gets the definitions that it lacks; it has the others as they are here.
    wanted = document.Document(contents.definitions)
    plan = manifest.plan(wanted, by=by)
    clashes = [one for one in plan["operations"] if one["action"] != "create"]
    if clashes:
        names = ", ".join(f"{one['kind']} {one['name']}" for one in clashes)
        raise Conflict(CLASH.format(names))
    if plan["has_changes"]:
        manifest.apply(wanted, plan["plan_hash"], by=by)
    acting = actor.acting_for(ActorKind.IMPORT, new_id(), contents.account["slug"])
    with acting, tenancy.as_owner():
        target = _target(contents, slug, as_copy=as_copy)
        with versioned_cache.reloading():
            import_ = _Import(contents, target, progress)
            imported = import_.run()
    checkpoints.create(imported.account_id)
    sealing.sign(imported.account_id)
    return imported


@dataclass
class _Target:
    """The account that is created, or reopened."""

    account_id: str
    slug: str
    is_same: bool = True
    is_reopened: bool = False
    user_ids: dict[str, str] = field(default_factory=dict)
    """New ids of users, for those that are taken."""


def _target(contents: Contents, slug: str, *, as_copy: bool) -> _Target:
    account_id = contents.account["id"]
    changes.settle(account_id)
    copy = _Target(new_id(), slug, is_same=False)
    if as_copy:
        return copy
    chain = sa.union_all(
        *(sa.select(head.account_id).where(head.account_id == account_id) for head in CHAIN_HEADS)
    )
    existing = (
        db.connection()
        .execute(sa.select(Account.closed_at).where(Account.id == account_id))
        .first()
    )
    if existing is None:
        # A chain without its account is none to continue.
        return copy if db.connection().scalar(chain) else _Target(account_id, slug)
    head = (
        AuditChange.account_id == account_id,
        AuditChange.last_id == contents.head["id"],
        AuditChange.checksum == bytes.fromhex(contents.head["checksum"]),
    )
    goes_on = db.connection().scalar(sa.select(AuditChange.last_id).where(*head))
    if existing.closed_at is None or goes_on is None:
        return copy
    return _Target(account_id, slug, is_reopened=True)


class _Import:
    def __init__(self, contents: Contents, target: _Target, progress: Progress) -> None:
        self._contents, self._target, self._progress = contents, target, progress
        self._roles: dict[str, int] = {}
        self._rows = 0
        self._staged: list[Staged] = []

    def run(self) -> Imported:
        target = self._target
        with ExitStack() as stack:
            if not target.is_reopened:  # else jobs that delete its files might be under way
                stack.enter_context(blobs.stored(self._contents, target.account_id))
            with db.transaction():
                if target.is_reopened:
                    self._stop_deletion()
                    stack.enter_context(blobs.stored(self._contents, target.account_id))
                self._write()
        return Imported(target.account_id, target.slug, target.is_same, self._rows)

    def _stop_deletion(self) -> None:
        mine = jobs.TABLE.c.account_id == self._target.account_id
        running = (mine, jobs.TABLE.c.status == jobs.JobState.PENDING, jobs.TABLE.c.attempts > 0)
        under_way = (jobs.TABLE.c.last_error.is_(None), jobs.TABLE.c.finished_at.is_(None))
        locked = sa.select(jobs.TABLE.c.id).where(mine).with_for_update()
        db.connection().execute(locked).all()
        if db.connection().execute(sa.select(1).where(*running, *under_way)).first():
            raise Conflict(STILL_DELETING)
        for table in (*tables.included(), *(one.table for one in definitions.get_all())):
            own = table.c.account_id == self._target.account_id
            if db.connection().execute(sa.select(1).select_from(table).where(own).limit(1)).first():
                raise Conflict(STILL_DELETING)
        db.connection().execute(sa.delete(jobs.TABLE).where(mine))
        certificates.forget(self._target.account_id)

    def _write(self) -> None:
        if engine.has_one_writer():
            db.connection().exec_driver_sql("PRAGMA defer_foreign_keys = ON")
        else:
            db.connection().exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = 0")
        self._roles = {row.name: row.id for row in db.connection().execute(ROLE_NAMES)}
        self._write_account()
        for name, columns, rows in self._pieces():
            self._insert(name, columns, rows)
        self._insert_staged()
        for definition in definitions.get_all():
            links.rebuild(definition, self._target.account_id)
            search_words.store_all(definition, self._target.account_id)
        if self._target.is_same:
            self._move_head()
            self._move_security_head()
        webhook_versions.outdate(self._target.account_id)
        versions = tables.core_table("webhook_versions")
        mine = versions.c.account_id == self._target.account_id
        # Beyond any version that a process may still have of a deleted account.
        later = sa.update(versions).where(mine).values(version=versions.c.version + 1000)
        db.connection().execute(later)
        self._record()

    def _write_account(self) -> None:
        source, target = self._contents.account, self._target
        session = db.db.session
        slug_taken, plan = SLUG_TAKEN.format(target.slug), source["plan"]
        if plan is not None and plan not in plans.load(lock=True):
            raise Conflict(NO_PLAN.format(plan[:80]))
        with (
            errors.conflict_on_unique("accounts", "id", "id", IMPORTED),
            errors.conflict_on_unique("accounts", "slug", "slug", slug_taken),
        ):
            if target.is_reopened:
                account = accounts.get_for_update(target.account_id)
                if account is None or account.closed_at is None:
                    raise Conflict(STILL_DELETING)
                account.closed_at, account.slug = None, target.slug
                account.name, account.settings = source["name"], source["settings"]
                account.is_active, account.plan = source["is_active"], plan
                account.flags = source["flags"]
                account.version += 1
            else:
                session.add(
                    Account(
                        id=target.account_id,
                        account_code=accounts.next_code(),
                        slug=target.slug,
                        name=source["name"],
                        is_active=source["is_active"],
                        settings=source["settings"],
                        plan=plan,
                        flags=source["flags"],
                        created_at=clock.parse(source["created_at"]),
                    )
                )
            session.flush()

    def _pieces(self) -> Iterator[tuple[str, list[str], list[list[Any]]]]:
        name, columns, rows, length = "", list[str](), list[list[Any]](), 0
        for event in self._contents.events():
            if event.kind == "row":
                rows.append(event.value)
                length += sum(len(value) for value in event.value if type(value) is str)
            if rows and (event.kind != "row" or len(rows) == PIECE or length > MAX_LENGTH):
                yield name, columns, rows
                self._rows += len(rows)
                self._progress(self._rows)
                rows, length = [], 0
            if event.kind == "table":
                name, columns = event.value["table"], event.value["columns"]
                if name.startswith("records/"):
                    self._stage(name.removeprefix("records/"))
            if event.kind == "blob":
                return

    def _stage(self, collection: str) -> None:
        if engine.has_one_writer():
            return
        # PostgreSQL checks references when a statement ends: one statement inserts them all.
        definition = definitions.get(collection)
        name = f"bundle_{len(self._staged)}"
        quoted = db.connection().dialect.identifier_preparer.format_table(definition.table)
        create = f"CREATE TEMP TABLE {name} (LIKE {quoted}) ON COMMIT DROP"
        db.connection().exec_driver_sql(create)
        self._staged.append(Staged(definition, name))

    def _insert(self, name: str, columns: Sequence[str], rows: Sequence[list[Any]]) -> None:
        target = self._target
        bundle = tables.bundled().get(name)  # None for records
        if bundle and bundle.is_log and (not target.is_same or target.is_reopened):
            return
        if bundle and not bundle.is_copied and not target.is_same:
            return
        collection = name.removeprefix("records/")
        is_core = collection == name
        table = tables.core_table(name) if is_core else definitions.get(collection).table
        lists = {} if is_core else definitions.get(collection).lists
        coders = dict(zip(tables.names_of(table), tables.decoders(table, self._roles), strict=True))
        if coders.keys() != set(columns):
            raise Conflict(frames.CUT)
        ordered = [coders[column] for column in columns]
        if name == "users":
            ids = [row[columns.index("id")] for row in rows]
            taken = db.connection().scalars(sa.select(User.id).where(User.id.in_(ids)).distinct())
            target.user_ids |= {id: new_id() for id in taken}
        # Checksums of logs cover the ids.
        new_ids = {} if bundle and bundle.is_log else target.user_ids
        values = []
        for row in rows:
            if new_ids:
                row = [
                    _with_new_ids(value, new_ids)
                    if column in lists
                    else UUID.sub(lambda found: new_ids.get(found[0], found[0]), value)
                    if (name, column) == IN_TRASH
                    else new_ids.get(value, value)
                    if type(value) is str
                    else value
                    for column, value in zip(columns, row, strict=True)
                ]
            try:
                decoded = tables.coded(ordered, row)
            except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
                raise Conflict(frames.CUT) from error
            if adjusted := self._adjusted(name, dict(zip(columns, decoded, strict=True))):
                values.append(adjusted)
        if values:
            staged = None if is_core or not self._staged else self._staged[-1].name
            into = tables.plain(table, staged)
            db.connection().execute(sa.insert(into), values)

    def _adjusted(self, name: str, row: dict[str, Any]) -> dict[str, Any] | None:
        target = self._target
        if name == "audit_checkpoints" and row["public_key"] not in signing.public_keys():
            return None  # it was verified; this instance makes one of its own
        if name in ("audit_starts", "security_starts"):
            return self._signed_start(name, row)
        if bundle := tables.bundled().get(name):
            row |= bundle.reset
        if row.get("collection_id"):
            row["collection_id"] = self._collection_ids.get(row["collection_id"])
        if name == "saved_views" and not row["collection_id"]:
            return None
        if name in ("workflows", "workflow_versions"):
            is_member = row["owner_home"] == self._contents.account["id"]
            if is_member or not self._contents.is_own:
                # Another instance's superadmins are nobody here.
                row["owner_home"] = target.account_id
            if not is_member and not self._contents.is_own and "enabled" in row:
                row["enabled"] = False
        if name in ("webhooks", "workflows") and not target.is_same:
            row["enabled"] = False
        return {**row, "account_id": target.account_id}

    def _signed_start(self, name: str, row: dict[str, Any]) -> dict[str, Any]:
        """The verified start of a log that was cut, signed by this instance. Raises Conflict."""
        account_id = self._target.account_id
        chain_id = account_id if name == "audit_starts" else SECURITY.chain_id(account_id)
        start = signing.stored_start({**row, "account_id": chain_id})
        if row["public_key"] not in signing.public_keys():
            place = (start["account_id"], start["entry_id"], start["checksum"], start["removed"])
            start = signing.sign_chain(*place) or {}
        if not start:
            raise Conflict("Set SERVICE_AUDIT_CHECKPOINT_KEY to import a log that was cut.")
        return {**signing.start_row(start), "account_id": account_id}

    @cached_property
    def _collection_ids(self) -> Mapping[str, str]:
        """The ids of collections here, by those in the bundle."""
        ids = self._contents.collection_ids
        return {id: definitions.get(name).id for name, id in ids.items()}

    def _insert_staged(self) -> None:
        if not self._staged:
            return
        if citus.is_sharded(db.connection()):
            shard_inserts.insert(self._staged, self._target.account_id, PIECE, MAX_LENGTH)
            return
        preparer = db.connection().dialect.identifier_preparer
        parts = []
        for definition, name in self._staged:
            columns = ["account_id", *tables.names_of(definition.table)]
            names = ", ".join(map(preparer.quote, columns))
            into = preparer.format_table(definition.table)
            parts.append(
                f"{name}_rows AS (INSERT INTO {into} ({names}) SELECT {names} FROM {name})"  # noqa: S608
            )
        db.connection().exec_driver_sql(f"WITH {', '.join(parts)} SELECT 1")

    def _move_head(self) -> None:
        """Let the chain go on behind its last entry, with a number that no other change has."""
        heads, head = tables.core_table(AuditHead.__tablename__), self._contents.head
        mine = heads.c.account_id == self._target.account_id
        if self._target.is_reopened:
            moved = sa.update(heads).where(mine).values(expired_change=heads.c.last_id)
            db.connection().execute(moved)
            return
        first = max(feed_changes.next_number(), head["id"] + 1)
        signed = tables.core_table("audit_checkpoints")
        checkpoint = sa.select(sa.func.max(signed.c.entry_id)).where(
            signed.c.account_id == self._target.account_id
        )
        values = {
            "account_id": self._target.account_id,
            "last_id": head["id"],
            "checksum": head["checksum"],
            "checkpoint_id": db.connection().scalar(checkpoint) or 0,
            "changed_at": clock.now(),
            # Clients of the change feed load anew, also those that read there after the export.
            "expired_change": first,
        }
        if head["id"]:
            db.connection().execute(sa.insert(heads).values(**values))
        feed_changes.move_sequence(first)

    def _move_security_head(self) -> None:
        """Let the security log go on behind its last event; that of a reopened account is here."""
        head = self._contents.security_head
        if self._target.is_reopened or not head["id"]:
            return
        checkpoint = head["checkpoint"]
        if checkpoint is not None and checkpoint["public_key"] not in signing.public_keys():
            checkpoint = None  # it was verified; this instance signs one of its own
        values = {
            "account_id": self._target.account_id,
            "number": head["id"],
            "checksum": head["checksum"],
            "checkpoint": digest.canonical(checkpoint).decode() if checkpoint else None,
        }
        db.connection().execute(sa.insert(HEADS).values(**values))

    def _record(self) -> None:
        source, head = self._contents.account, self._contents.head
        about = {"bundle_of": source["id"], "bundle_entry": head["id"]}
        value = ("bundle", None, head["checksum"])
        account_id = self._target.account_id
        target = (append.CREATE, "accounts", account_id)
        append.record(append.Change(account_id, target, [value], about), always=True)


def _with_new_ids(value: str | None, new_ids: Mapping[str, str]) -> str | None:
    """The JSON of a list of ids, of which users have new ones."""
    if value is None:
        return None
    return orjson.dumps([new_ids.get(id, id) for id in orjson.loads(value)]).decode()
