"""Signed addresses of files, which need no other credential (contract section 16)."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import NamedTuple

from itsdangerous import BadSignature, URLSafeSerializer

from app import clock, config
from app.errors import Forbidden
from app.files.service import File
from app.rest import PREFIX

SALT = "atrium.files.link"


class Link(NamedTuple):
    """A signed address and its end."""

    url: str
    expires_at: datetime


def create(file: File, seconds: int) -> Link:
    """Sign an address that works for some seconds, as long as the file is there."""
    expires_at = clock.now() + timedelta(seconds=seconds)
    token = _serializer().dumps([file.account_id, file.id, int(expires_at.timestamp())])
    url = f"{config.current().base_url}{PREFIX}/files/link/{token}"
    return Link(str(url), expires_at.replace(microsecond=0))


def read(token: str) -> tuple[str, str]:
    """The account and the file of a link. Raises Forbidden."""
    try:
        account_id, file_id, expires_at = _serializer().loads(token)
    except BadSignature:
        raise _invalid() from None
    if expires_at <= clock.now().timestamp():
        raise _invalid()
    return str(account_id), str(file_id)


def _serializer() -> URLSafeSerializer:
    settings = config.current()
    return URLSafeSerializer([*settings.secret_key_previous, settings.secret_key], salt=SALT)


def _invalid() -> Forbidden:
    return Forbidden("The link is invalid or has expired.", error="link_invalid")
