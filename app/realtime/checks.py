"""The look every two seconds, for what was not announced: a few statements for all streams."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from app import clock
from app.context import tenancy
from app.db import versioned_cache
from app.db.versioned_cache import VersionCheck
from app.realtime.feed import changes
from app.realtime.stream import Stream

ACCOUNTS = 500  # of a statement


def find_due(streams: Sequence[Stream]) -> tuple[set[str], set[str]]:
    """The accounts whose streams may have lost a right, and those with new changes."""
    now = clock.now().timestamp()
    with tenancy.across_accounts():
        newest = _newest(sorted({stream.connection.account_id for stream in streams}))
        outdated = versioned_cache.outdated(
            check for stream in streams for check in _version_checks(stream)
        )
    urgent, late = set[str](), set[str]()
    for stream in streams:
        account_id = stream.connection.account_id
        expires_at = stream.connection.credential.expires_at
        is_expired = expires_at is not None and expires_at <= now
        if is_expired or not outdated.isdisjoint(_version_checks(stream)):
            urgent.add(account_id)
        elif stream.caller is None or _is_late(stream, newest.get(account_id, 0)):
            late.add(account_id)
    return urgent, late


def _is_late(stream: Stream, newest: int) -> bool:
    position = stream.position
    return position is not None and position < newest


def _newest(account_ids: Sequence[str]) -> dict[str, int]:
    found = dict[str, int]()
    for start in range(0, len(account_ids), ACCOUNTS):
        found |= changes.newest(account_ids[start : start + ACCOUNTS])
    return found


def _version_checks(stream: Stream) -> Iterator[VersionCheck]:
    if stream.caller is not None:
        yield from stream.caller.version_checks
    for definition in stream.definitions:
        yield from definition.version_checks
