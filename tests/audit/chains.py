"""Builders and readers of audit entries for the tests."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.builders import Caller

PROJECT = Path(__file__).resolve().parents[2]


def entries(root: Caller, **asked: Any) -> list[dict[str, Any]]:
    """Entries, the oldest first."""
    query = {"sort_by": "id", "sort_order": "asc", "limit": 500, **asked}
    answer = root.get("audit-logs", query_string=query)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json["items"]
    return found


def told(found: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """What entries tell, without who and when."""
    names = ("operation", "table_name", "column_name", "old_value", "new_value")
    return [tuple(entry[name] for name in names) for entry in found]


def verified(root: Caller, account_id: str | None = None) -> dict[str, Any]:
    """What the service says of the chains."""
    query = {"account_id": account_id} if account_id else {}
    answer = root.get("audit-logs/verify", query_string=query)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json
    return found


def stand_alone() -> ModuleType:
    """The verifier that knows nothing of the application."""
    spec = importlib.util.spec_from_file_location("verify_audit", PROJECT / "docs/verify_audit.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
