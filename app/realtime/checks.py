"""The look every two seconds, for what was not announced: a few statements for all streams."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from app import clock
from app.context import tenancy
from app.db import versioned_cache
from app.db.versioned_cache import VersionCheck
from app.feed import changes
from app.realtime.stream import Stream

ACCOUNTS = 500  # of a statement


def find_due(streams: Sequence[Stream]) -> set[str]:
    """The accounts with new changes, withdrawn or expired credentials, or changed collections."""
    now = clock.now().timestamp()
    with tenancy.across_accounts():
        newest = _newest(sorted({stream.connection.account_id for stream in streams}))
        outdated = versioned_cache.outdated(
            check for stream in streams for check in _version_checks(stream)
        )
    due = set[str]()
    for stream in streams:
        account_id, position = stream.connection.account_id, stream.position
        expires_at = stream.connection.credential.expires_at
        if (
            stream.caller is None
            or (position is not None and position < newest.get(account_id, 0))
            or (expires_at is not None and expires_at <= now)
            or not outdated.isdisjoint(_version_checks(stream))
        ):
            due.add(account_id)
    return due


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
