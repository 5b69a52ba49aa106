"""Records that a reference can lead to: searched for, and called by a name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from app.auth.principal import Principal
from app.collections import access
from app.collections.access import Access
from app.collections.definition import Definition
from app.console.records.filters import literally, quoted
from app.console.shell import lists
from app.errors import Forbidden, InvalidValues
from app.records import service as records
from app.rest.converters import UuidPath

MOST_FOUND = 10
MOST_SEARCHED = 5
LONGEST_LABEL = 80
SPEAKING = ("text", "email", "url")
Found = list[tuple[str, str]]


def speaking(opened: Access) -> list[str]:
    """The fields that tell people which record it is: texts that the caller sees, unmasked."""
    declared = opened.definition.declared
    texts = (name for name, one in declared.items() if one.type in SPEAKING)
    return [name for name in texts if name in opened.comparable]


def label(record: Mapping[str, Any], names: Iterable[str]) -> str:
    """What a record is called: its first text that is not empty, else its id."""
    texts = (str(record[name]) for name in names if record.get(name))
    text = next(texts, record["id"])
    return text if len(text) <= LONGEST_LABEL else f"{text[:LONGEST_LABEL]}…"


def search(target: Definition, text: str, by: Principal) -> Found | None:
    """Ids and labels of some records that hold a text; None where the caller may not list them."""
    if not access.is_open(by, target, "list"):
        return None
    names = speaking(access.for_operation(by, target, "list"))
    if UuidPath.accepts(text):
        return _page(target, {"id": [text.lower()]}, by, names)
    asked = {"filter": [holding(text, names[:MOST_SEARCHED])]} if text and names else {}
    return _page(target, asked, by, names)


def holding(text: str, names: Iterable[str]) -> str:
    """The expression of the rule language for a text within one of some fields."""
    pattern = quoted(f"%{literally(text)}%")
    return " || ".join(f"{name} ~ {pattern}" for name in names)


def labels(target: Definition, ids: Iterable[str], by: Principal) -> dict[str, str]:
    """What records are called, by their ids; without those that the caller may not list."""
    wanted = list(dict.fromkeys(ids))
    if not wanted or not access.is_open(by, target, "list"):
        return {}
    names = speaking(access.for_operation(by, target, "list"))
    return dict(_page(target, {"id": wanted}, by, names, len(wanted)) or ())


def _page(
    target: Definition,
    parameters: Mapping[str, list[str]],
    by: Principal,
    names: list[str],
    limit: int = MOST_FOUND,
) -> Found | None:
    try:
        cut = lists.LONGEST_VALUE
        rows, _ = records.page(
            target.name, parameters, skip=0, limit=limit, count=False, by=by, cut=cut
        )
    except InvalidValues:  # too long a text for an expression
        return []
    except Forbidden:
        return None
    return [(row["id"], label(row, names)) for row in rows]
