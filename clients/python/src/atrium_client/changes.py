"""What the changes of both clients share."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

Operation = Literal["create", "update", "delete"]
HEARTBEAT_SECONDS = 15


@dataclass(frozen=True)
class Change:
    """A change of a record. Go on after it with `since=change.change`."""

    change: int
    operation: Operation
    collection: str
    record_id: str
    record: Mapping[str, Any] | None
    """The record as it is now, None if it was deleted."""
    hidden: bool
    """Whether it still exists, outside of what the caller may view or of the filter."""
    occurred_at: str

    @classmethod
    def from_event(cls, data: Mapping[str, Any]) -> Self:
        """Return the change of a stream's event."""
        collection, _, operation = data["type"].rpartition(".")
        record = None if operation == "delete" else data["data"]
        return cls(
            data["change"],
            operation,
            collection,
            data["data"]["id"],
            record,
            data.get("hidden", False),
            data["timestamp"],
        )

    @classmethod
    def from_item(cls, item: Mapping[str, Any]) -> Self:
        """Return the change of an item of the feed."""
        return cls(
            item["change"],
            item["event"].removeprefix("records."),
            item["collection"],
            item["record_id"],
            item["record"],
            item.get("hidden", False),
            item["occurred_at"],
        )


@dataclass(frozen=True)
class Reset:
    """Changes are missing: read the records anew. The stream goes on with the next change."""

    collection: str | None = None
    """The collection to list again, as the caller's rights have changed; None for all."""
    change: int | None = None
    """Go on after it with `since=reset.change`, if it has one."""

    @classmethod
    def from_item(cls, item: Mapping[str, Any]) -> Self:
        """Return the reset of an item of the feed."""
        return cls(item["collection"], item["change"])


@dataclass(frozen=True)
class ChangePage:
    """Changes of the feed; read on with `since=page.next`, at once while `has_more`."""

    items: Sequence[Change | Reset]
    next: int
    has_more: bool
    oldest: int


class Events:
    """Reads server-sent events, and notes what it takes to go on after a cut."""

    def __init__(self, since: int | None) -> None:
        self.position = None if since is None else str(since)
        """The id of the last event that had one."""
        self.cuts = 0
        """How often in a row a connection ended before any event."""
        self._rest = b""
        self._event: dict[str, str] = {}

    def start(self) -> dict[str, str]:
        """Return the headers of another connection."""
        self._rest, self._event = b"", {}
        self.cuts += 1
        return {} if self.position is None else {"Last-Event-ID": self.position}

    def feed(self, chunk: bytes) -> Iterator[Change | Reset]:
        """Yield the changes and resets that a chunk completes."""
        # Not str.splitlines(), which also splits at characters that JSON may contain.
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            if line:
                name, _, value = line.decode().partition(":")
                self._event[name] = value.removeprefix(" ")
            elif found := self._dispatch():
                yield found

    def _dispatch(self) -> Change | Reset | None:
        event, self._event = self._event, {}
        self.position = event.get("id", self.position)
        self.cuts = 0
        match event.get("event"):
            case "message":
                data = json.loads(event["data"])
                collection, _, operation = data["type"].rpartition(".")
                if operation == "reset":
                    return Reset(collection, data["change"])
                return Change.from_event(data)
            case "reset":
                return Reset()
        return None
