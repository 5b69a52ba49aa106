"""Which files a caller may read: those of fields that it may view, and its own new uploads."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import sqlalchemy as sa

from app import db
from app.audit.security_log import reads as personal_reads
from app.auth import api_keys
from app.auth import principal as principals
from app.auth.principal import Principal
from app.collections import access as accesses
from app.collections import definitions
from app.collections.access import Access
from app.collections.definitions import Definition
from app.collections.fields.file import files_in
from app.collections.models import Collection
from app.context import tenancy
from app.db import versioned_cache
from app.errors import Forbidden, NotFound, Unauthorized
from app.files import links
from app.files import service as files
from app.files.links import Token
from app.files.service import NO_FILE, File
from app.records.store import reads
from app.types import JSONMapping

NOT_YOURS = "Only admins and those who may change the record end the links of its file."


def readable(file_id: str, *, by: Principal) -> File:
    """A file that the caller may read. Raises NotFound, Unauthorized, ScopeDenied, Stale."""
    file = files.find(file_id, by.account_id)
    if file and (files.is_own_upload(file, by) or _is_viewable(file, by)):
        return file
    # Where its owner may view the record, a key gets a 403 that names what it lacks.
    of_owner = file and by.scopes is not None and _fields(file, replace(by, scopes=None), "view")
    if of_owner:
        accesses.check_scope(by, of_owner[0].definition, "view")
    raise NotFound(NO_FILE) if by.signed_in else Unauthorized()


def linked(token: Token) -> File:
    """The file of a link, while its account is active and its maker may view the file.

    Raises NotFound, and Forbidden if the links of the file were ended.
    """
    file = files.find(token.file_id, token.account_id)
    is_active = principals.reload_active_account(token.account_id) is not None
    if file is None or file.released_at is not None or not is_active:
        raise NotFound(NO_FILE)
    if file.link_version != token.version:
        raise links.invalid()
    if token.made_by is not None:
        maker = _maker(token)
        if maker is None or not _may_link(file, maker):
            raise NotFound(NO_FILE)
    return file


def _maker(token: Token) -> Principal | None:
    if token.api_key_id is None:
        maker = principals.for_user_in_account(token.account_id, token.made_by)
        return replace(maker, mfa=token.mfa) if maker else None
    with suppress(Unauthorized):
        return api_keys.authenticate_by_id(token.account_id, token.api_key_id)
    return None


def _may_link(file: File, maker: Principal) -> bool:
    with tenancy.scoped_to(maker.tenancy):  # a superadmin's row is not of the account
        return files.is_own_upload(file, maker) or _fields(file, maker, "view") is not None


def end_links(file_id: str, *, by: Principal) -> None:
    """End all links of a file, as admins may, and who may update its record.

    Raises NotFound, Forbidden, Unauthorized.
    """
    if by.is_admin and by.scopes is None:
        file = files.find(file_id, by.require_account_id())
        if file is None:
            raise NotFound(NO_FILE)
    else:
        file = readable(file_id, by=by)
        if not (files.is_own_upload(file, by) or _fields(file, by, "update")):
            raise Forbidden(NOT_YOURS)
    links.end_all(file, target=target(file))


def target(file: File) -> tuple[str, str]:
    """The target of events about a file: its record, or the upload."""
    definition = _definition(file)
    return (definition.table_name, file.record_id) if definition else ("files", file.id)


def _definition(file: File) -> Definition | None:
    if file.record_id is None:
        return None
    of_file = Collection.id == file.collection_id
    name = db.connection().scalar(sa.select(Collection.name).where(of_file))
    return definitions.get(name) if name else None


def _is_viewable(file: File, by: Principal) -> bool:
    found = _fields(file, by, "view")
    if found is None:
        return False
    access, row, having = found
    with personal_reads.by_path("file"):
        personal_reads.note_rows(access, [row], having)
    return True


def _fields(
    file: File, by: Principal, operation: str
) -> tuple[Access, JSONMapping, set[str]] | None:
    """The record that has a file and its fields with it, if an operation is open to the caller."""
    definition = None if file.released_at is not None else _definition(file)
    access = accesses.if_open(by, definition, operation) if definition else None
    if definition is None or access is None:
        return None
    version_checks = versioned_cache.combine(*by.version_checks, *definition.version_checks)
    row = reads.read_one(definition, file.account_id, file.record_id, version_checks, access)
    if row is None:
        return None
    shown = definition.files.keys() & access.comparable.keys()
    having = {field for field in shown if file.id in [one["id"] for one in files_in(row[field])]}
    return (access, row, having) if having else None
