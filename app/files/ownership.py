"""Links files to records: records take uploads, and let go of files, as they are written."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import product
from typing import Any

import sqlalchemy as sa

from app import clock, db
from app.auth.principal import Principal
from app.collections.definitions import Definition
from app.collections.fields.file import FileField, files_in
from app.db import versioned_cache
from app.errors import problem
from app.files.models import FILES
from app.files.service import File
from app.files.uploads import TAKEN_WITHIN
from app.types import JSONMapping, JSONObject

Row = JSONMapping
Problem = JSONObject
PIECE = 500
UNKNOWN = "There is no such upload of yours, or another record has it."


class Resolved:
    """The uploads that the bodies of a request name, looked up at once."""

    def __init__(
        self,
        definition: Definition,
        rows: Sequence[Row],
        records: Sequence[Row],
        by: Principal,
    ) -> None:
        self._definition, self._by = definition, by
        ids = {id for row in rows for name in definition.files for id in row.get(name) or ()}
        account_ids = {record["account_id"] for record in records}
        self._files, self._taken = _find(account_ids, ids), set[str]()

    def apply(self, row: dict[str, Any], record: Row) -> list[Problem]:
        """Replace the ids in new values of a record by what is stored; returns the problems."""
        problems, fields = list[Problem](), self._definition.files
        kept = (record.get(name) for name in fields if name not in row)
        self._taken.update(file["id"] for value in kept for file in files_in(value))
        for name, field in fields.items():
            ids = row.get(name)
            if ids is None:
                continue
            files = [self._file(id, record["account_id"], record["id"]) for id in ids]
            known = [file for file in files if file is not None]
            if len(known) < len(files):
                problems.append(problem(name, "file_unknown", UNKNOWN))
            problems += _unfit(field, known)
            row[name] = field.stored(known)
            if row[name] is None and field.required:
                problems.append(problem(name, "required_missing", "This field is required."))
        return problems

    def _file(self, file_id: str, account_id: str, record_id: str | None) -> JSONMapping | None:
        file = self._files.get((account_id, file_id))
        if file is None or file_id in self._taken:
            return None
        if file["record_id"] is None:
            is_old = file["created_at"] < clock.now() - TAKEN_WITHIN
            may = file["uploaded_by"] == self._by.user_id and not is_old
        else:  # also what the record had before
            owner = (self._definition.id, record_id)
            may = (file["collection_id"], file["record_id"]) == owner
        if not may:
            return None
        self._taken.add(file_id)
        return file


def describe(definition: Definition, row: dict[str, Any], account_id: str) -> list[Problem]:
    """Replace ids by what is stored, whoever uploaded the files; returns the problems."""
    named = {name: row[name] for name in definition.files if isinstance(row.get(name), list)}
    found = _find({account_id}, {id for ids in named.values() for id in ids})
    problems: list[Problem] = []
    for name, ids in named.items():
        files = [found[account_id, id] for id in ids if (account_id, id) in found]
        if len(files) < len(ids):
            problems.append(problem(name, "file_unknown", "There is no such file."))
        row[name] = definition.files[name].stored(files)
    return problems


def waiting(ids: Collection[str], by: Principal) -> Sequence[File]:
    """The uploads of the caller among these that no record has taken."""
    mine = (FILES.c.account_id == by.require_account_id(), FILES.c.uploaded_by == by.user_id)
    is_waiting = (*mine, FILES.c.record_id.is_(None), FILES.c.removed_at.is_(None))
    query = sa.select(FILES).where(FILES.c.id.in_(sorted(ids)[:PIECE]), *is_waiting)
    return db.connection().execute(query).all() if ids else ()


def _find(
    account_ids: Collection[str], ids: Collection[str]
) -> Mapping[tuple[str, str], JSONMapping]:
    found, ordered = {}, sorted(ids)
    # Account by account, as no lock spans shards; nearly always it is one.
    for account_id, start in product(sorted(account_ids), range(0, len(ordered), PIECE)):
        some = (FILES.c.account_id == account_id, FILES.c.id.in_(ordered[start : start + PIECE]))
        # Locked, so that no job removes them before the record has them.
        query = sa.select(FILES).where(*some, FILES.c.removed_at.is_(None)).with_for_update()
        for row in db.connection().execute(query.order_by(FILES.c.id)).mappings():
            found[row["account_id"], row["id"]] = dict(row)
    return found


def _unfit(field: FileField, files: Sequence[JSONMapping]) -> list[Problem]:
    problems = []
    for file in files:
        if file["size"] > field.largest:
            message = (
                f"{file['name']} is too large: files have at most {field.largest:,} bytes here."
            )
            problems.append(problem(field.name, "file_too_large", message))
        if not field.takes(file["mime_type"]):
            accepted = ", ".join(field.options["mime_types"])
            message = f"{file['name']} is {file['mime_type']}; this field takes {accepted}."
            problems.append(problem(field.name, "file_type_not_allowed", message))
    return problems


def follow(definition: Definition, record: Row | None, previous: Row | None) -> None:
    """Give a written record the files that it names now, and take those it names no more.

    Raises Stale if one was removed or taken meanwhile.
    """
    after, before = _ids(definition, record), _ids(definition, previous)
    row = record or previous or {}
    mine = FILES.c.account_id == row["account_id"]
    if taken := after - before:
        values = {"collection_id": definition.id, "record_id": row["id"], "released_at": None}
        is_own = (FILES.c.collection_id == definition.id, FILES.c.record_id == row["id"])
        is_free = sa.or_(FILES.c.record_id.is_(None), sa.and_(*is_own))
        is_there = (mine, FILES.c.id.in_(sorted(taken)), FILES.c.removed_at.is_(None), is_free)
        updated = db.connection().execute(sa.update(FILES).where(*is_there).values(**values))
        if updated.rowcount != len(taken):
            raise versioned_cache.Stale
    if gone := before - after:
        release = sa.update(FILES).where(mine, FILES.c.id.in_(sorted(gone)))
        db.connection().execute(release.values(released_at=clock.now()))


def _ids(definition: Definition, row: Row | None) -> set[str]:
    return {file["id"] for name in definition.files for file in files_in((row or {}).get(name))}
