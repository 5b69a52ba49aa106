"""Reading events as the operator's own service does."""

from __future__ import annotations

from typing import Any

from tests.builders import Caller

EVENTS = "operator/events"


def position(root: Caller) -> int:
    """The number of the newest event."""
    after, has_more = 0, True
    while has_more:
        page = root.get(EVENTS, query_string={"after": after, "limit": 1000}).json
        after, has_more = page["next"], page["has_more"]
    return int(after)


def events(root: Caller, after: int = 0, **query: Any) -> list[dict[str, Any]]:
    """All events after a number, page by page."""
    found, has_more = list[dict[str, Any]](), True
    while has_more:
        answer = root.get(EVENTS, query_string={"after": after, **query})
        assert answer.status_code == 200, answer.json
        found += answer.json["items"]
        after, has_more = answer.json["next"], answer.json["has_more"]
    return found


def told(root: Caller, after: int = 0, **query: Any) -> list[tuple[str, dict[str, Any]]]:
    """The types and data of all events after a number."""
    return [(one["type"], one["data"]) for one in events(root, after, **query)]
