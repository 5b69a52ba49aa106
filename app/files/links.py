"""Signed addresses of files, which need no other credential (docs/files.md).

A link works while whoever made it may view the file, and until all links of the file are ended.
"""

from __future__ import annotations

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
from app.errors import Forbidden, TooManyRequests
from app.files.models import FILES
from app.files.service import File
from app.web import PREFIX, rate_limits
from app.web.rate_limits import Limit

SALT = "atrium.files.link.made"
FORMER_SALT = "atrium.files.link"  # of links that do not say who made them
# A page may show a linked file to thousands: an event for each network and hour says enough.
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
    expires_at = clock.now() + timedelta(seconds=seconds)
    end = int(expires_at.timestamp())
    maker = (by.user_id, by.api_key_id, by.mfa)
    token = _serializer(SALT).dumps([file.account_id, file.id, end, file.link_version, *maker])
    details = {"file_id": file.id, "expires_at": clock.iso(expires_at)}
    record(Event(file.account_id, EventKind.FILE_LINK_CREATED, *target, details))
    url = f"{config.current().base_url}{PREFIX}/files/link/{token}"
    return Link(str(url), expires_at.replace(microsecond=0))


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
