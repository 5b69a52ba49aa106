"""Readers of the security log for the tests."""

from __future__ import annotations

from typing import Any

from tests.builders import Caller

CUSTOMERS = [
    {"name": "name", "type": "text"},
    {"name": "email", "type": "text", "pii": True, "mask_type": "email"},
]


def events(caller: Caller, **filters: Any) -> list[dict[str, Any]]:
    """The events that match, the oldest first."""
    answer = caller.get("account/security-log", query_string={"limit": 500, **filters})
    assert answer.status_code == 200, answer.json
    return list(reversed(answer.json["items"]))


def reads(caller: Caller, **filters: Any) -> list[dict[str, Any]]:
    """The reads of personal data."""
    return events(caller, kind="personal_data.read", **filters)
