"""Which files a caller may read: those of fields that it may view, and its own new uploads."""

from __future__ import annotations

import sqlalchemy as sa

from app import db
from app.auth import principal as principals
from app.auth.principal import Principal
from app.collections import access as accesses
from app.collections import definition as definitions
from app.collections.fields.file import files_in
from app.collections.models import Collection
from app.db import versioned_cache
from app.errors import NotFound, Unauthorized
from app.files import service as files
from app.files.service import NO_FILE, File
from app.records.store import reads
from app.security import reads as personal_reads


def readable(file_id: str, *, by: Principal) -> File:
    """A file that the caller may read. Raises NotFound, Unauthorized, Stale."""
    file = files.find(file_id, by.account_id)
    if file and (files.is_own_upload(file, by) or _is_viewable(file, by)):
        return file
    raise NotFound(NO_FILE) if by.signed_in else Unauthorized()


def linked(account_id: str, file_id: str) -> File:
    """A file that a link names, while its account is active, and a record or its uploader has it.

    Raises NotFound.
    """
    file = files.find(file_id, account_id)
    is_active = principals.reload_active_account(account_id) is not None
    if file is None or file.released_at is not None or not is_active:
        raise NotFound(NO_FILE)
    return file


def _is_viewable(file: File, by: Principal) -> bool:
    if file.record_id is None or file.released_at is not None:
        return False
    name = db.connection().scalar(
        sa.select(Collection.name).where(Collection.id == file.collection_id)
    )
    definition = definitions.get(name) if name else None
    access = accesses.if_open(by, definition, "view") if definition else None
    if definition is None or access is None:
        return False
    version_checks = versioned_cache.combine(*by.version_checks, *definition.version_checks)
    row = reads.read_one(
        definition, file.account_id, file.record_id, version_checks, access.where, access.parameters
    )
    shown = definition.files.keys() & access.comparable.keys()
    if row is None:
        return False
    having = {field for field in shown if file.id in [one["id"] for one in files_in(row[field])]}
    if having:
        with personal_reads.by_path("file"):
            personal_reads.note_rows(access, [row], having)
    return bool(having)
