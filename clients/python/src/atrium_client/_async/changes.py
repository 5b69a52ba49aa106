"""Changes of records, as they happen or page by page."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import httpx

from atrium_client._async.session import PREFIX, AsyncSession
from atrium_client.changes import HEARTBEAT_SECONDS, Change, ChangePage, Events, Reset
from atrium_client.concurrency import async_sleep
from atrium_client.errors import NetworkError, RateLimited, ServerError
from atrium_client.filters import Condition
from atrium_client.records import query


class AsyncChanges:
    """The changes of records that the caller may view."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def poll(
        self, *, since: int = 0, collections: Sequence[str] = (), limit: int = 100
    ) -> ChangePage:
        """Return the changes after a position. Raises FeedExpired if it is no longer stored."""
        params = query(since=since, collections=collections, limit=limit)
        answer = await self._session.json("GET", "changes", params=params)
        answer["items"] = [
            (Reset if item["event"] == "records.reset" else Change).from_item(item)
            for item in answer["items"]
        ]
        return ChangePage(**answer)

    async def follow(
        self,
        *collections: str,
        since: int | None = None,
        filters: Mapping[str, Condition | str] = {},
        silence: float = 2.5 * HEARTBEAT_SECONDS,
    ) -> AsyncIterator[Change | Reset]:
        """Yield changes as they happen, after `since` or from now on, until the caller stops.

        Connects again where it was after a cut, or a silence of so many seconds. Collections may
        name operations: `posts:create,update`. Raises AtriumError once the caller has no right.
        """
        filtered = {f"filter.{name}": str(condition) for name, condition in filters.items()}
        options = {
            "params": {"collections": list(collections), **filtered},
            "timeout": httpx.Timeout(30, read=silence),
        }
        events = Events(since)
        while True:
            delay = None
            try:
                async for event in self._stream(events, options):
                    yield event
            except (NetworkError, RateLimited, ServerError) as error:
                if error.status == 501:  # this server has no streams
                    raise
                delay = error.retry_after
            await async_sleep(delay or self._session.retries.backoff(events.cuts + 1))

    async def _stream(
        self, events: Events, options: Mapping[str, Any]
    ) -> AsyncIterator[Change | Reset]:
        path = f"{PREFIX}/realtime/subscribe"
        async with self._session.open(path, headers=events.start(), **options) as response:
            async for chunk in response.aiter_bytes():
                for event in events.feed(chunk):
                    yield event
