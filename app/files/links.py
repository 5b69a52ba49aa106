"""Signed addresses of files, which need no other credential (docs/files.md).

A link works while whoever made it may view the file, and until all links of the file are ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

import sqlalchemy as sa
from itsdangerous import BadSignature, URLSafeSerializer

from app import clock, config, db
from app.audit.security_log.models import EventKind
from app.audit.security_log.recording import Event, record
from app.auth.principal import Principal
from app.context import actor
from app.db import filters
from app.errors import Forbidden, TooManyRequests
from app.files.models import FILES
from app.files.service import File
from app.web import PREFIX, rate_limits
from app.web.rate_limits import Limit

SALT = "atrium.files.link.made"
FORMER_SALT = "atrium.files.link"  # of links that do not say who made them
# A page may show a linked file to thousands: an event for each network and hour says enough.
MOST_NAMED = 100  # files of an event
Key = tuple[str, str]
NOTED, NOTED_OF_ACCOUNT = Limit("file-link", 1, 3600), Limit("file-links", 1000, 3600)


class Link(NamedTuple):
    """A signed address and its end."""

    url: str
    expires_at: datetime


@dataclass(frozen=True)
class Token:
    account_id: str
    file_id: str
    expires_at: int
    version: int = 0
    """The number of times that the links of the file had been ended before."""
    made_by: str | None = None
    """The user who made it; None for links of earlier releases."""
    api_key_id: str | None = None
    mfa: bool = False
    """Whether the maker's session had passed a second factor."""


def create(file: File, seconds: int, *, target: tuple[str, str], by: Principal) -> Link:
    """Sign an address that works for some seconds, as long as the caller may view the file."""
    (link,) = _signed([file], seconds, by)
    details = {"file_id": file.id, "expires_at": clock.iso(link.expires_at)}
    record(Event(file.account_id, EventKind.FILE_LINK_CREATED, *target, details))
    return link


def create_all(
    table_names: Mapping[Key, str], seconds: int, *, by: Principal
) -> Mapping[Key, Link]:
    """Sign addresses of files of records, by account and id; those that are gone have none.

    They are named with the table of their record. The log has one event for each table.
    """
    accounts, ids = {key[0] for key in table_names}, sorted({key[1] for key in table_names})
    these = (FILES.c.account_id.in_(sorted(accounts)), filters.is_any_of(FILES.c.id, ids))
    query = sa.select(FILES.c.account_id, FILES.c.id, FILES.c.link_version).where(*these)
    present = query.where(FILES.c.removed_at.is_(None), FILES.c.released_at.is_(None))
    files = db.connection().execute(present).all() if table_names else []
    found = {(one.account_id, one.id): one for one in files}
    keys = [key for key in table_names if key in found]
    links = dict(zip(keys, _signed([found[key] for key in keys], seconds, by), strict=True))
    named: dict[tuple[str, str], list[str]] = {}
    for account_id, file_id in keys:
        named.setdefault((account_id, table_names[account_id, file_id]), []).append(file_id)
    expires_at = clock.iso(next(iter(links.values())).expires_at) if links else None
    record(
        *(
            Event(
                account_id,
                EventKind.FILE_LINK_CREATED,
                table_name,
                details={
                    "files": len(file_ids),
                    "file_ids": file_ids[:MOST_NAMED],
                    "expires_at": expires_at,
                },
            )
            for (account_id, table_name), file_ids in named.items()
        )
    )
    return links


def _signed(files: Iterable[File], seconds: int, by: Principal) -> list[Link]:
    expires_at = clock.now() + timedelta(seconds=seconds)
    end, maker = int(expires_at.timestamp()), (by.user_id, by.api_key_id, by.mfa)
    serializer, start = _serializer(SALT), f"{config.current().base_url}{PREFIX}/files/link/"
    values = ([one.account_id, one.id, end, one.link_version, *maker] for one in files)
    urls = (f"{start}{serializer.dumps(value)}" for value in values)
    return [Link(url, expires_at.replace(microsecond=0)) for url in urls]


def read(text: str) -> Token:
    """Parse and verify the token of a link. Raises Forbidden."""
    for salt in (SALT, FORMER_SALT):
        with suppress(BadSignature):
            token = Token(*_serializer(salt).loads(text))
            if token.expires_at > clock.now().timestamp():
                return token
    raise invalid()


def end_all(file: File, *, target: tuple[str, str]) -> None:
    """End the links of a file that were made so far."""
    this = (FILES.c.account_id == file.account_id, FILES.c.id == file.id)
    with db.transaction():
        values = {"link_version": FILES.c.link_version + 1}
        db.connection().execute(sa.update(FILES).where(*this).values(**values))
        record(Event(file.account_id, EventKind.FILE_LINK_ENDED, *target, {"file_id": file.id}))


def note_use(file: File, token: Token, *, target: tuple[str, str]) -> None:
    """Record that somebody downloads a file by a link."""
    network = rate_limits.client_network(actor.current().ip_address)
    allowance = NOTED.of(file.account_id, file.id, token.made_by, network)
    try:
        rate_limits.consume(allowance, NOTED_OF_ACCOUNT.of(file.account_id))
    except TooManyRequests:
        return
    record(
        Event(
            file.account_id,
            EventKind.FILE_LINK_USED,
            *target,
            {"file_id": file.id, "made_by": token.made_by},
        )
    )


def _serializer(salt: str) -> URLSafeSerializer:
    settings = config.current()
    return URLSafeSerializer([*settings.secret_key_previous, settings.secret_key], salt=salt)


def invalid() -> Forbidden:
    """The error for a link that is changed, expired or ended."""
    return Forbidden("The link is invalid or has expired.", error="link_invalid")
